"""Launching: what is refused and where, what is pinned, what is written."""

import json
import math
import struct
from types import MappingProxyType, SimpleNamespace

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.accounts.models import AuditEntry, Project
from controlplane.banks.models import BankVersion, Task
from controlplane.checkpoints.models import Checkpoint
from controlplane.runs import forecast
from controlplane.runs.changes import fold
from controlplane.runs.launch import check_launch
from controlplane.runs.models import Run
from controlplane.runs.services import do_launch
from controlplane.telemetry.points import write_points
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.canonical import digest
from runner.contract.parse import InvalidDocument
from tests.controlplane.factories import make_attempt, make_points, make_run
from tests.controlplane.runs.conftest import make_bank

TINY = BUILTIN_MODELS["assay-tiny"]


def refusals(user, team, document):
    """Pointer → message of everything wrong with the document."""
    checked = check_launch(user, team, document)
    assert (checked.config is None) == bool(checked.errors)
    return {error.pointer: error.message for error in checked.errors}


# ---------------------------------------------------------------- what is written
def test_a_launch_queues_the_run_with_its_event_and_audit_entry(owner, team, bank, document):
    run = do_launch(owner, team, document)
    assert (run.state, run.owner, run.method, run.model, run.total_steps) == ("queued", owner, "grpo", "assay-tiny", 10)
    assert run.queued_at and run.seq > 0
    assert fold(run.events.order_by("id")).run == "queued"
    assert AuditEntry.objects.get(verb="run.launch").object_id == str(run.pk)


def test_the_stored_bytes_are_canonical_and_hashed(owner, team, bank, document):
    run = do_launch(owner, team, document)
    stored = bytes(run.config)
    assert run.config_hash == digest(stored)
    assert json.dumps(json.loads(stored), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == stored
    assert run.document == document


def test_the_same_document_gives_the_same_bytes(owner, team, bank, document):
    reordered = dict(reversed(document.items()))
    assert bytes(do_launch(owner, team, document).config) == bytes(do_launch(owner, team, reordered).config)


def test_bank_model_and_preset_are_pinned(owner, team, bank, document):
    config = check_launch(owner, team, {**document, "preset": "sample"}).config
    assert config.environment.version == "b" * 64
    assert config.model.source.revision == BUILTIN_MODELS["assay-tiny"].revision
    assert config.preset == "sample@1"


def test_the_newest_bank_version_is_pinned_unless_one_is_named(owner, team, bank, document):
    newer = BankVersion.objects.create(bank=bank, number=2, digest="c" * 64, blob="x", size=1)
    for task in Task.objects.filter(version__number=1):
        task.pk, task.version = None, newer
        task.save()
    assert check_launch(owner, team, document).config.environment.version == "c" * 64
    named = {**document, "environment": {"type": "quiz", "version": "b" * 64}}
    assert check_launch(owner, team, named).bank_version.number == 1


def test_a_project_is_made_on_demand(owner, team, bank, document):
    do_launch(owner, team, {**document, "project": "ablation"})
    assert Project.objects.filter(team=team, slug="ablation").exists()


def test_a_viewer_may_check_but_not_launch(viewer, team, bank, document):
    assert not check_launch(viewer, team, document).errors
    with pytest.raises(PermissionDenied):
        do_launch(viewer, team, document)
    assert not Run.objects.exists()


def test_an_outsider_may_not_even_check(outsider, team, bank, document):
    with pytest.raises(PermissionDenied):
        check_launch(outsider, team, document)


def test_nothing_is_written_for_a_refused_document(owner, team, bank, document):
    with pytest.raises(InvalidDocument) as refused:
        do_launch(owner, team, {**document, "project": "new", "environment": {"type": "quiz", "domains": ["alchemy"]}})
    assert refused.value.errors[0].pointer == "/environment/domains/0"
    assert not Run.objects.exists() and not Project.objects.filter(slug="new").exists()


# ---------------------------------------------------------------- what is refused
def test_schema_errors_carry_their_pointers(owner, team, bank, document):
    bad = {**document, "stages": [{"type": "grpo", "batch_size": 10, "group_size": 4}], "colour": "red"}
    found = refusals(owner, team, bad)
    assert "not a multiple of group_size 4" in found["/stages/0/group_size"]
    assert "unknown key" in found["/colour"]


def test_a_missing_bank_names_the_ones_there_are(owner, team, bank, document):
    found = refusals(owner, team, {**document, "environment": {"type": "quiz", "bank": "trivia"}})
    assert "it has: quiz" in found["/environment/bank"]


def test_another_teams_bank_is_missing(owner, team, other_team, document):
    make_bank(other_team)
    assert "it has: none yet" in refusals(owner, team, document)["/environment/bank"]


def test_an_archived_bank_is_refused(owner, team, bank, document):
    bank.archived_at = timezone.now()
    bank.save()
    assert "archived on" in refusals(owner, team, document)["/environment/bank"]


def test_a_bank_of_another_environment_is_refused(owner, team, bank, document):
    assert (
        "not sciknoweval"
        in refusals(owner, team, {**document, "environment": {"type": "sciknoweval", "bank": "quiz"}})["/environment/bank"]
    )


def test_an_unknown_version_names_the_known_ones(owner, team, bank, document):
    assert (
        "bbbbbbbbbbbb" in refusals(owner, team, {**document, "environment": {"type": "quiz", "version": "d" * 64}})["/environment/version"]
    )


def test_unknown_domains_and_levels_name_the_known_ones(owner, team, bank, document):
    found = refusals(owner, team, {**document, "environment": {"type": "quiz", "domains": ["physics", "alchemy"], "levels": ["L9"]}})
    assert "it has: chemistry, physics" in found["/environment/domains/1"]
    assert "it has: L1" in found["/environment/levels/0"]


def test_an_unknown_kind_of_demonstration_names_the_known_ones(owner, team, bank, document):
    document["stages"] = [{"type": "sft", "kinds": ["gold", "silver"]}, *document["stages"]]
    assert not [error for error in check_launch(owner, team, document).errors if "kinds" in error.pointer], "an old version counted none"
    BankVersion.objects.filter(bank=bank).update(counts={"kinds": {"format": 3, "gold": 2}})
    [error] = check_launch(owner, team, document).errors
    assert (error.pointer, error.value) == ("/stages/0/kinds/1", "silver") and "it has: format, gold" in error.message


def test_an_unknown_split_names_the_known_ones(owner, team, bank, document):
    found = refusals(owner, team, {**document, "environment": {"type": "quiz", "eval_split": "test"}})
    assert "it has: eval, train" in found["/environment/eval_split"]


def test_filters_that_leave_no_task_are_refused(owner, team, bank, document):
    Task.objects.filter(split="train", domain="physics").delete()
    found = refusals(owner, team, {**document, "environment": {"type": "quiz", "domains": ["physics"]}})
    assert "no task is left" in found["/environment/train_split"]
    assert "/environment/eval_split" not in found


def test_training_on_the_held_out_split_is_refused(owner, team, bank, document):
    found = refusals(owner, team, {**document, "environment": {"type": "quiz", "train_split": "eval"}})
    assert "never trained on" in found["/environment/train_split"]


def test_a_context_shorter_than_the_prompt_is_refused(owner, team, bank, document):
    task = Task.objects.first()
    task.payload["question"] = "x" * 900
    task.save()
    # 900 + "Answer." + 4 × "option A" characters fit 124 tokens of room at eight characters each.
    assert refusals(owner, team, document) == {}
    task.payload["question"] = "x" * 1000
    task.save()
    found = refusals(owner, team, document)
    assert "has 1039 characters; 124 tokens" in found["/model/max_length"] and "raise it to 134" in found["/model/max_length"]


def test_a_doubtful_prompt_length_is_a_warning(owner, team, bank, document):
    task = Task.objects.first()
    task.payload["question"] = "x" * 600
    task.save()
    checked = check_launch(owner, team, document)
    assert not checked.errors
    assert checked.warnings[0].pointer == "/model/max_length"


def test_an_engine_on_gpus_has_one_in_each_worker(owner, team, bank, document, node):
    node.gpus = 8
    node.save()
    asked = {**document, "engine": {"type": "vllm"}, "resources": {"gpus": 2, "rollout_workers": 2, "worker_cpus": 0.1}}
    told = refusals(owner, team, asked)["/resources/gpus"]
    assert told.startswith("2 for 2 workers and the learner leaves a worker without one") and "ask for 3" in told
    asked["resources"]["gpus"] = 3
    assert refusals(owner, team, asked) == {}
    asked["engine"]["sleep_while_learning"] = True
    (warning,) = [item for item in check_launch(owner, team, asked).warnings if item.pointer.startswith("/engine")]
    assert warning.pointer == "/engine/sleep_while_learning" and "turn it off" in warning.message


def test_the_engine_is_stored_only_where_it_is_not_the_default(owner, team, bank, document):
    assert "engine" not in json.loads(bytes(do_launch(owner, team, document).config))
    other = do_launch(owner, team, {**document, "engine": {"type": "vllm"}})
    assert json.loads(bytes(other.config))["engine"]["max_sequences"] == 256


def test_more_gpus_than_the_cluster_has_is_refused_with_numbers(owner, team, bank, document, node):
    found = refusals(owner, team, {**document, "resources": {"gpus": 8}})
    assert found["/resources/gpus"].startswith("the run needs 8 GPUs; the cluster has 0 GPUs")


def test_more_processors_than_the_cluster_has_is_refused_with_numbers(owner, team, bank, document, node):
    found = refusals(owner, team, {**document, "resources": {"rollout_workers": 9}})
    assert "the run needs 5.5 CPUs; the cluster has 2.0 CPUs" in found["/resources/rollout_workers"]


def test_capacity_is_not_judged_while_no_node_is_known(owner, team, bank, document):
    assert refusals(owner, team, {**document, "resources": {"gpus": 8}}) == {}


def test_a_disk_too_small_for_the_checkpoints_is_refused(owner, team, bank, document, monkeypatch):
    usage = SimpleNamespace(total=1000 << 20, used=800 << 20, free=200 << 20)
    monkeypatch.setattr("controlplane.runs.forecast.shutil.disk_usage", lambda path: usage)
    found = refusals(owner, team, {**document, "checkpoints": {"every_steps": 1}})
    assert "the limit is 90% while less than 10.0 GiB are left" in found["/checkpoints/keep_last"]
    assert refusals(owner, team, document) == {}


def test_a_large_disk_may_be_fuller(owner, team, bank, document, monkeypatch):
    usage = SimpleNamespace(total=1000 << 30, used=980 << 30, free=20 << 30)
    monkeypatch.setattr("controlplane.runs.forecast.shutil.disk_usage", lambda path: usage)
    assert refusals(owner, team, document) == {}


def test_an_unknown_preset_is_refused(owner, team, bank, document):
    assert "known are sample" in refusals(owner, team, {**document, "preset": "nonesuch"})["/preset"]


# ---------------------------------------------------------------- models
def write_model(folder, *, tokenizer=True, config=True, weights=True, hidden=8, shapes=MappingProxyType({"w": [10, 8]})):
    folder.mkdir(exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps({"hidden_size": hidden, "num_hidden_layers": 2, "max_position_embeddings": 256}))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    if weights:
        entries, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * math.prod(shape)
            entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        header = json.dumps(entries).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    return folder


def with_folder(document, path, **model):
    return {**document, "model": {**document["model"], "source": {"type": "path", "path": str(path)}, **model}}


def test_a_model_folder_is_read_by_its_headers(owner, team, bank, document, tmp_path):
    checked = check_launch(owner, team, with_folder(document, write_model(tmp_path / "m")), with_forecast=True)
    assert not checked.errors
    assert checked.forecast["parameters"] == {"all": 80, "trained": 80}
    assert len(checked.config.model.source.revision) == 64


@pytest.mark.parametrize(
    "missing, told", [("tokenizer", "has no tokenizer"), ("config", "has no config.json"), ("weights", "no *.safetensors")]
)
def test_an_incomplete_model_folder_is_refused_at_its_field(owner, team, bank, document, tmp_path, missing, told):
    found = refusals(owner, team, with_folder(document, write_model(tmp_path / "m", **{missing: False})))
    assert told in found["/model/source/path"]


def test_a_missing_model_folder_is_refused(owner, team, bank, document, tmp_path):
    assert "is no folder" in refusals(owner, team, with_folder(document, tmp_path / "nowhere"))["/model/source/path"]


@pytest.mark.parametrize(
    "content", [b"", b"12345678", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"\xff\xfe{}"]
)
def test_damaged_weights_are_refused_and_nothing_breaks(owner, team, bank, document, tmp_path, content):
    (write_model(tmp_path / "m") / "model.safetensors").write_bytes(content)
    assert "not a whole safetensors file" in refusals(owner, team, with_folder(document, tmp_path / "m"))["/model/source/path"]


def test_truncated_weights_are_refused(owner, team, bank, document, tmp_path):
    weights = write_model(tmp_path / "m") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "where its header says" in refusals(owner, team, with_folder(document, tmp_path / "m"))["/model/source/path"]


def test_a_length_beyond_the_models_context_is_refused(owner, team, bank, document, tmp_path):
    found = refusals(owner, team, with_folder(document, write_model(tmp_path / "m"), max_length=512))
    assert "context of 256 tokens" in found["/model/max_length"]


def test_a_pinned_folder_that_changed_is_refused(owner, team, bank, document, tmp_path):
    folder = write_model(tmp_path / "m")
    pinned = check_launch(owner, team, with_folder(document, folder)).config.model_dump(mode="json")
    assert refusals(owner, team, pinned) == {}
    write_model(folder, hidden=16)
    assert "clear the revision" in refusals(owner, team, pinned)["/model/source/revision"]


def test_a_hub_commit_is_taken_without_asking_the_hub(owner, team, bank, document):
    source = {"type": "hub", "repo_id": "owner/model", "revision": "a" * 40}
    checked = check_launch(owner, team, {**document, "model": {"max_length": 128, "source": source}})
    assert not checked.errors and checked.config.model.source.revision == "a" * 40
    assert [warning.pointer for warning in checked.warnings] == ["/model/source"]


def test_a_hub_branch_that_cannot_be_asked_is_refused_with_the_remedy(owner, team, bank, document, monkeypatch):
    monkeypatch.setattr("controlplane.runs.preflight.HUB", "http://127.0.0.1:1")
    source = {"type": "hub", "repo_id": "owner/model"}
    assert "40 digits" in refusals(owner, team, {**document, "model": {"max_length": 128, "source": source}})["/model/source/repo_id"]


def from_checkpoint(document, checkpoint):
    return {**document, "model": {"max_length": 128, "source": {"type": "checkpoint", "checkpoint": str(checkpoint)}}}


def test_a_complete_checkpoint_of_the_team_is_pinned_by_its_manifest(owner, team, bank, document):
    row = Checkpoint.objects.create(run=make_run(team), attempt=1, step=4, state="complete", path="/x", manifest_hash="e" * 64)
    assert check_launch(owner, team, from_checkpoint(document, row.pk)).config.model.source.revision == "e" * 64


@pytest.mark.parametrize("state", ["writing", "broken", "deleted"])
def test_a_checkpoint_that_is_not_complete_is_refused(owner, team, bank, document, state):
    row = Checkpoint.objects.create(run=make_run(team), attempt=1, step=4, state=state, path="/x")
    assert f"is {state}" in refusals(owner, team, from_checkpoint(document, row.pk))["/model/source/checkpoint"]


def test_another_teams_checkpoint_is_unknown(owner, team, other_team, bank, document):
    row = Checkpoint.objects.create(run=make_run(other_team), attempt=1, step=4, state="complete", path="/x")
    assert "has no such checkpoint" in refusals(owner, team, from_checkpoint(document, row.pk))["/model/source/checkpoint"]
    assert "no checkpoint identifier" in refusals(owner, team, from_checkpoint(document, "nonsense"))["/model/source/checkpoint"]


# ---------------------------------------------------------------- the forecast
def test_the_forecast_says_work_memory_disk_and_queue(owner, team, bank, document, node):
    rail = check_launch(owner, team, {**document, "checkpoints": {"every_steps": 2}}, with_forecast=True).forecast
    assert rail["work"] == {**rail["work"], "steps": 10, "episodes": 160, "tokens_at_most": 160 * 128}
    assert rail["disk"]["checkpoint"] == TINY.parameters * 12
    # Six are written; two newest, four best and the one being written could lie there at once.
    assert rail["disk"]["kept"] == 6
    assert rail["memory"]["available"] == 8 << 30
    assert rail["queue"]["sentence"] == "starts at once"
    assert [item["bundle"] for item in rail["gang"]] == ["driver", "learner", "worker-0", "worker-1"]
    assert rail["duration"] is None


def test_the_forecast_counts_every_process_of_the_learner(owner, team, bank, document, node):
    resources = {"rollout_workers": 1, "worker_cpus": 0.5, "learner_cpus": 0.5, "learner_processes": 2}
    asked = {**document, "resources": resources, "checkpoints": {"in_background": True}}
    rail = check_launch(owner, team, asked, with_forecast=True).forecast
    assert [item["bundle"] for item in rail["gang"]] == ["driver", "learner", "learner-1", "worker-0"]
    # All weights in each while it loads, half of gradients and moments; a checkpoint being written is there once more.
    memory, weights = rail["memory"], 4 * TINY.parameters
    assert memory["learner"] == weights + 12 * TINY.parameters // 2 + forecast.PROCESS_BYTES
    assert memory["total"] == 2 * memory["learner"] + memory["worker"] + 12 * TINY.parameters + forecast.PROCESS_BYTES
    assert memory["sentence"].startswith("2 learner processes of ") and "a checkpoint being written" in memory["sentence"]


def test_the_forecast_is_made_for_a_run_that_is_too_large(owner, team, bank, document, node):
    checked = check_launch(owner, team, {**document, "resources": {"rollout_workers": 9}}, with_forecast=True)
    assert checked.errors and checked.forecast["queue"]["sentence"].startswith("0 ahead in the queue; needs 5.5 CPUs, 2.0 free of 2.0")


WARM_START = {"type": "sft", "steps": 900, "batch_size": 64}
# A sample run on two cores: 19 s of starting and evaluating, 0.25 s a step of the warm start, 1.4 s one of reinforcement learning.
AROUND, SFT_STEP, GRPO_STEP = 19.0, 0.25, 1.4


def with_stages(document: dict, warm_steps: int, steps: int, batch_size: int = 512) -> dict:
    """The document as a warm start of `warm_steps` and GRPO of `steps`."""
    grpo = document["stages"][0] | {"steps": steps, "batch_size": batch_size, "group_size": 8}
    return {**document, "stages": [WARM_START | {"steps": warm_steps}, grpo]}


def finish(run: Run, seconds: float, attempts: int = 1) -> None:
    """Ends `run` with the step times of a sample run, after attempts that took `seconds` together."""
    times = [SFT_STEP] * 900 + [GRPO_STEP] * 60
    for number in range(1, attempts + 1):
        attempt = make_attempt(run, number, state="succeeded" if number == attempts else "lost")
        begin = timezone.now() - timezone.timedelta(hours=9 * (attempts - number) + 1)
        type(attempt).objects.filter(pk=attempt.pk).update(
            created_at=begin, ended_at=begin + timezone.timedelta(seconds=seconds / attempts)
        )
    write_points(run.pk, attempts, make_points({"timing_s/step": [(step, value) for step, value in enumerate(times, 1)]}))
    Run.objects.filter(pk=run.pk).update(state="succeeded", started_at=begin, ended_at=timezone.now())


def forecast_of(owner, team, document) -> dict | None:
    return check_launch(owner, team, document, with_forecast=True).forecast["duration"]


def test_a_run_is_forecast_to_take_what_an_equal_one_took(owner, team, bank, document):
    finish(do_launch(owner, team, with_stages(document, 900, 60)), 328)
    found = forecast_of(owner, team, with_stages(document, 900, 60))
    assert found["seconds"] == pytest.approx(328)
    assert found["sentence"] == (
        "about 5 min: 19 s to start, evaluate and save, 900 sft steps of 0.25 s and 60 grpo steps of 1.4 s; the median of 1 earlier run like it"
    )


def test_a_short_run_is_not_forecast_by_the_mean_step_of_a_long_one(owner, team, bank, document):
    """328 s over 960 steps would give ten steps of each stage 7 s; they take three times as long."""
    finish(do_launch(owner, team, with_stages(document, 900, 60)), 328)
    assert forecast_of(owner, team, with_stages(document, 10, 10))["seconds"] == pytest.approx(AROUND + 10 * SFT_STEP + 10 * GRPO_STEP)


def test_a_smaller_batch_takes_its_part_of_a_step(owner, team, bank, document):
    finish(do_launch(owner, team, with_stages(document, 900, 60)), 328)
    wanted = AROUND + 900 * SFT_STEP + 60 * GRPO_STEP / 4
    assert forecast_of(owner, team, with_stages(document, 900, 60, batch_size=128))["seconds"] == pytest.approx(wanted)


def test_the_night_between_two_attempts_is_no_time_of_the_run(owner, team, bank, document):
    finish(do_launch(owner, team, with_stages(document, 900, 60)), 350, attempts=2)
    assert forecast_of(owner, team, with_stages(document, 900, 60))["seconds"] == pytest.approx(350)


def test_a_run_that_reported_no_step_times_forecasts_nothing(owner, team, bank, document):
    done = do_launch(owner, team, with_stages(document, 900, 60))
    make_attempt(done, state="succeeded", ended_at=timezone.now())
    Run.objects.filter(pk=done.pk).update(state="succeeded", started_at=timezone.now(), ended_at=timezone.now())
    assert forecast_of(owner, team, with_stages(document, 900, 60)) is None


@pytest.mark.parametrize(("modules", "summed"), [(["all-linear"], 2 * (16 + 12 + 40)), (["q_proj", "k_proj"], 2 * (16 + 12))])
def test_lora_is_counted_by_the_shapes_of_the_layers_it_adapts(owner, team, bank, document, tmp_path, modules, summed):
    layer = {"self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8], "mlp.up_proj": [32, 8], "input_layernorm": [8]}
    shapes = {f"model.layers.{index}.{name}.weight": shape for index in range(2) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": [100, 8], "lm_head.weight": [100, 8]}
    folder, adapter = write_model(tmp_path / "m", shapes=shapes), {"type": "lora", "rank": 4, "target_modules": modules}
    checked = check_launch(owner, team, with_folder(document, folder, adapter=adapter), with_forecast=True)
    assert checked.forecast["parameters"] == {"all": sum(math.prod(shape) for shape in shapes.values()), "trained": 4 * summed}


def test_lora_trains_and_stores_only_its_matrices(owner, team, bank, document):
    rail = check_launch(
        owner, team, {**document, "model": {"max_length": 128, "adapter": {"type": "lora", "rank": 4}}}, with_forecast=True
    ).forecast
    assert rail["parameters"]["trained"] == 4 * 2 * TINY.hidden * 7 * TINY.layers
