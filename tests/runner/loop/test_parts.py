"""The driver's parts without Ray: assignment, preflight, weight sync, checkpoint rows, staleness ahead of time."""

import json
import os
import shutil
import socket
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import ray

from runner import gang as gangs
from runner import learner_group, preflight
from runner.assignment import Assignment, Bundle, Refused, from_claim, local_grant, open_bank
from runner.checkpointing import Checkpointer
from runner.contract.bank import Task, write_bank
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.parse import parse
from runner.contract.termination import Termination
from runner.gang_errors import ProcessLost, head_replaced
from runner.learner_group import LearnerGroup
from runner.policies.base import SamplingParams
from runner.reporting.devices import Device
from runner.reporting.emitter import Emitter
from runner.reporting.exit_record import exit_record, write_exit_record
from runner.reporting.heartbeat import Component
from runner.reporting.metrics import Clock, in_words, throughput, tracked
from runner.rollouts.dispatcher import Dispatcher, lost_outcome
from runner.rollouts.episodes import WorkerBatch
from runner.rollouts.sampler import Resampler, Sampler
from runner.rollouts.workflow import GroupWorkflow
from runner.sync import WeightSync, WeightSyncError


@pytest.fixture
def config(document):
    return parse(document)


@pytest.fixture
def assignment(config, tmp_path):
    return Assignment("r", "7", 2, config, tmp_path / "runs" / "r", local_grant(config), tmp_path / "cache")


# ---------------------------------------------------------------- assignment
def reply_of(config, /, **changes):
    return {
        "run": "r",
        "attempt": 2,
        "config": json.loads(canonical_bytes(config)),
        "config_hash": digest(canonical_bytes(config)),
        "storage": "/s/runs/r",
        "grant": [{"bundle": "learner", "node": "n", "node_resource": "node:1", "cpus": 0.8, "gpus": 0}],
        "resume": None,
        "model_checkpoint": None,
        **changes,
    }


def test_a_claims_answer_becomes_the_assignment(config):
    resume = {"checkpoint": "c", "path": "/s/runs/r/checkpoints/step_4", "step": 4, "stage": 1, "policy_version": 4}
    assignment = from_claim(reply_of(config, resume=resume), "77")
    assert (assignment.attempt, assignment.number, assignment.config) == ("77", 2, config)
    assert assignment.folder == Path("/s/runs/r/attempts/2") and assignment.resume.step == 4
    assert assignment.grant[0].resources == {"CPU": 0.8, "node:1": 0.001}


def test_a_config_that_is_not_the_hashed_one_is_refused(config):
    with pytest.raises(Refused, match="hash"):
        from_claim(reply_of(config, config_hash="0" * 64), "77")


def test_a_config_from_before_a_field_existed_still_runs(config):
    launched = json.loads(canonical_bytes(config))
    del launched["max_attempts"]
    reply = reply_of(config, config=launched, config_hash=digest(canonical_bytes(launched)))
    assert from_claim(reply, "77").config == config


def test_a_config_that_this_runner_is_too_old_for_is_refused_with_the_remedy(config):
    launched = {**json.loads(canonical_bytes(config)), "of_tomorrow": 1}
    with pytest.raises(Refused, match="of_tomorrow.*upgrade this node"):
        from_claim(reply_of(config, config=launched, config_hash=digest(canonical_bytes(launched))), "77")


def test_a_grant_asks_only_for_what_it_has():
    assert Bundle("learner", cpus=1.0, gpus=2).resources == {"CPU": 1.0, "GPU": 2}


@pytest.mark.parametrize(("gpus", "workers", "learner", "each"), [(0, 2, 0, 0), (1, 1, 0.5, 0.5), (2, 1, 1, 1), (5, 2, 3, 1)])
def test_a_run_of_its_own_shares_gpus_that_are_too_few(config, gpus, workers, learner, each):
    resources = config.resources.model_copy(update={"gpus": gpus, "rollout_workers": workers})
    granted = {bundle.bundle: bundle.gpus for bundle in local_grant(config.model_copy(update={"resources": resources}))}
    assert granted == {"driver": 0, "learner": learner, **{f"worker-{index}": each for index in range(workers)}}


def test_every_process_of_the_learner_has_a_bundle(config):
    resources = config.resources.model_copy(update={"learner_processes": 3, "gpus": 6})
    granted = local_grant(config.model_copy(update={"resources": resources}))
    assert [(bundle.bundle, bundle.cpus, bundle.gpus) for bundle in granted] == [
        ("driver", 0.2, 0),
        *[("learner", 0.8, 2), ("learner-1", 0.8, 1), ("learner-2", 0.8, 1)],
        *[("worker-0", 0.5, 1), ("worker-1", 0.5, 1)],
    ]
    assert resources.cpus == pytest.approx(0.2 + 3 * 0.8 + 2 * 0.5)


def test_the_bank_is_filtered_and_its_digest_checked(config, bank_file):
    data = bank_file.read_bytes()
    bank = open_bank(data, config)
    assert (len(bank.train), len(bank.held_out), len(bank.demonstrations)) == (20, 10, 40)
    with pytest.raises(Refused, match="digest") as refused:
        open_bank(data, config, "0" * 64)
    assert refused.value.pointer == "/environment/version"
    narrow = parse({**json.loads(canonical_bytes(config)), "environment": {"type": "quiz", "domains": ["physics"]}})
    assert {task.domain for task in open_bank(data, narrow).train} == {"physics"}


# ---------------------------------------------------------------- preflight
def test_storage_that_cannot_be_written_is_refused(assignment, monkeypatch):
    preflight.check_storage(assignment)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    with pytest.raises(Refused, match="read-only"):
        preflight.check_storage(assignment)


def test_parameters_are_counted_from_headers(tiny_qwen3):
    from transformers import AutoModelForCausalLM

    expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(tiny_qwen3).parameters())
    assert preflight.count_parameters(tiny_qwen3) == expected


def gang_on(*readings):
    """A gang of two processes on one GPU, whose memory in use is the next of `readings`, in GiB, each time it is asked for."""
    left = [None if gib is None else int(gib * 2**30) for gib in readings]

    def devices():
        told = Device(3, "GPU-3", "H", 0.0, left.pop(0) if len(left) > 1 else left[0], 141 << 30, 30.0, 70.0, 0)
        return {"learner": [told], "worker-0": [told]}

    return SimpleNamespace(devices=devices, components={name: Component(1, 1.0, "node-1", gpus=("3",)) for name in ("learner", "worker-0")})


def test_a_gpu_that_somebody_uses_is_refused_once_and_by_name(monkeypatch):
    monkeypatch.setattr(preflight, "FREED_WITHIN_S", 0.0)
    with pytest.raises(Refused) as refused:
        preflight.check_devices(gang_on(40.0))
    told = "GPU 3 on node-1 has 40.00 GiB in use before the run has begun; end what uses it, cordon its node, or ask for fewer"
    assert str(refused.value) == told and refused.value.pointer == "/resources/gpus"


def test_a_gpu_that_is_about_to_be_free_is_waited_for(monkeypatch):
    monkeypatch.setattr(preflight, "ASK_EVERY_S", 0.0)
    preflight.check_devices(gang_on(40.0, 12.0, 0.5))
    preflight.check_devices(gang_on(None))
    preflight.check_devices(SimpleNamespace(devices=dict, components={}))


def test_a_disk_too_small_for_the_checkpoints_is_refused(assignment, tiny_qwen3, monkeypatch):
    assignment.storage.mkdir(parents=True)
    preflight.check_room(assignment, tiny_qwen3)
    size = preflight.count_parameters(tiny_qwen3) * 12
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(3 * size * 1.2) - 1))
    with pytest.raises(Refused) as refused:
        preflight.check_room(assignment, tiny_qwen3)
    assert refused.value.pointer == "/checkpoints/keep_last" and refused.value.value == 2


def test_too_little_memory_is_refused(assignment, tiny_qwen3, monkeypatch):
    assignment.storage.mkdir(parents=True)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with pytest.raises(Refused) as refused:
        preflight.check_room(assignment, tiny_qwen3)
    assert refused.value.pointer == "/resources/rollout_workers"


def generating(document, tmp_path, problems, **resources):
    """A run on vLLM, a gang whose workers find `problems`, and what the workers were asked."""
    config = parse({**document, "engine": {"type": "vllm"}, "resources": {"rollout_workers": 2, **resources}})
    asked = []

    def scatter(method, arguments):
        assert method == "engine_problems"
        asked.extend(arguments)
        return problems

    gang = SimpleNamespace(device="cuda" if config.resources.gpus else "cpu", scatter=scatter)
    return gang, Assignment("r", "7", 1, config, tmp_path, local_grant(config), tmp_path), asked


def test_a_worker_without_the_engine_is_named_with_the_field(document, tmp_path):
    gang, assignment, _ = generating(document, tmp_path, [[], [("type", "vllm is not installed on this node")]])
    with pytest.raises(Refused, match="worker-1: vllm is not installed") as refused:
        preflight.check_generation(gang, assignment)
    assert (refused.value.pointer, refused.value.value) == ("/engine/type", "vllm")


@pytest.mark.parametrize(("gpus", "device", "sharing"), [(0, "cpu", 2), (1, "cuda", 2), (2, "cuda", 1), (3, "cuda", 1)])
def test_each_worker_is_asked_beside_those_it_shares_memory_with(document, tmp_path, gpus, device, sharing):
    gang, assignment, asked = generating(document, tmp_path, [[], []], gpus=gpus)
    preflight.check_generation(gang, assignment)
    assert asked == [(device, sharing)] * 2


def test_nobody_is_asked_about_transformers(assignment):
    preflight.check_generation(SimpleNamespace(), assignment)


def test_the_longest_prompt_is_named(config, bank_file):
    bank = open_bank(bank_file.read_bytes(), config)
    lengths = {task.key: 10 for task in [*bank.train, *bank.held_out]}
    gang = SimpleNamespace(count=2, scatter=lambda method, arguments: [[lengths[key] for key in keys] for (keys,) in arguments])
    preflight.check_lengths(gang, bank, config)
    lengths["eval-25"] = 255
    with pytest.raises(Refused, match="'eval-25'.*255 tokens.*at least 257") as refused:
        preflight.check_lengths(gang, bank, config)
    assert refused.value.pointer == "/model/max_length"


def test_a_task_that_is_not_used_is_not_measured(document, bank_file):
    config = parse({**document, "evaluation": {"type": "none"}, "environment": {"type": "quiz", "train_limit": 3}})
    measured = []
    gang = SimpleNamespace(count=2, scatter=lambda method, arguments: [measured.extend(keys) or [1] * len(keys) for (keys,) in arguments])
    preflight.check_lengths(gang, open_bank(bank_file.read_bytes(), config), config)
    assert len(measured) == 3 and all(key.startswith("train-") for key in measured)


# ---------------------------------------------------------------- exit record
def test_the_exit_record_is_whole_or_absent(tmp_path):
    try:
        raise Refused("too long", "/model/max_length", 40)
    except Refused as error:
        record = exit_record("failed", 3, "refused", error)
    write_exit_record(tmp_path / "a", record)
    read = json.loads((tmp_path / "a" / "exit.json").read_text())
    assert read["error"]["pointer"] == "/model/max_length" and read["error"]["value"] == 40 and "Traceback" in read["error"]["traceback"]
    assert os.listdir(tmp_path / "a") == ["exit.json"]


# ---------------------------------------------------------------- weight sync
class FakeGang:
    """Scores are what `learner` and `workers` say; versions likewise."""

    count = 2

    def __init__(self, version=4, drift=0.0):
        self.version, self.drift, self.pushes, self.asleep = version, drift, 0, True

    def wake(self):
        self.asleep = False

    def ask_learner(self, method, *arguments):
        return method, arguments

    def wait(self, reference):
        return [np.array([np.nan, -1.0], np.float32)]

    def push_weights(self):
        assert not self.asleep
        self.pushes += 1
        return [4, self.version]

    def every_worker(self, method, *arguments):
        answers = {
            "probe": [[[1, 2]]] * 2,
            "score": [[np.array([np.nan, -1.0])], [np.array([np.nan, -1.0 + self.drift])]],
        }
        return answers[method]


def sync_of(gang, config, tmp_path, bank_file):
    dispatcher = Dispatcher(gang, "7")
    return WeightSync(
        gang, dispatcher, Emitter(tmp_path / "spool", "driver"), open_bank(bank_file.read_bytes(), config), config
    ), dispatcher


def test_a_push_measures_the_difference_and_happens_once_a_version(config, tmp_path, bank_file):
    gang = FakeGang(drift=5e-4)
    sync, dispatcher = sync_of(gang, config, tmp_path, bank_file)
    told = sync.push(4)
    assert told["weight_sync/probe_difference"] == pytest.approx(5e-4, rel=1e-3) and dispatcher.version == 4
    assert told["timing_s/weight_transfer"] >= 0
    assert sync.push(4) == {} and gang.pushes == 1


@pytest.mark.parametrize("gang", [FakeGang(drift=2e-3), FakeGang(drift=float("nan")), FakeGang(version=3)])
def test_workers_that_do_not_hold_the_weights_end_the_run(config, tmp_path, bank_file, gang):
    sync, dispatcher = sync_of(gang, config, tmp_path, bank_file)
    with pytest.raises(WeightSyncError, match="weight_sync"):
        sync.push(4)
    assert dispatcher.version == 0


@pytest.mark.parametrize(("dtype", "difference"), [("float32", 0.4), ("bfloat16", 0.1)])
def test_a_single_token_decides_in_float32_and_the_mean_in_bfloat16(config, tmp_path, bank_file, dtype, difference):
    sync, _ = sync_of(FakeGang(), config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})}), tmp_path, bank_file)
    held, off = np.array([np.nan, -1, -1, -1, -1]), np.array([np.nan, -1, -1, -1.4, -1])
    assert sync._difference([held], [[held], [off]]) == pytest.approx(difference)


@pytest.mark.parametrize("makes_room", [True, False])
def test_engines_that_make_room_sleep_from_the_first_step_learned_to_the_next_push(makes_room):
    said = []
    gang = gangs.Gang.__new__(gangs.Gang)
    gang._makes_room, gang._asleep = makes_room, False
    gang.every_worker, gang.wait = said.append, lambda reference: None
    remote = {name: SimpleNamespace(remote=lambda *_, name=name: said.append(name)) for name in ("learn", "release")}
    gang.learners = LearnerGroup({"learner": SimpleNamespace(**remote)}, lambda references: (references, []))
    gang.wake()
    gang.learn(1)
    gang.learn(2)
    gang.wake()
    gang.wake()
    assert said == (["sleep", "learn", "learn", "release", "wake"] if makes_room else ["learn", "learn"])


# ---------------------------------------------------------------- several processes of one learner
def learners_that(monkeypatch, *outcomes):
    """A group whose processes answer with `outcomes`, the last first; those that are exceptions are raised."""

    def get(reference):
        if isinstance(outcomes[reference], Exception):
            raise outcomes[reference]
        return outcomes[reference]

    monkeypatch.setattr(learner_group.ray, "get", get)
    monkeypatch.setattr(learner_group.ray, "wait", lambda references, timeout: (references[-1:], references[:-1]))
    names = ["learner", *(f"learner-{rank}" for rank in range(1, len(outcomes)))]
    return LearnerGroup(dict.fromkeys(names), lambda references: (references[-1:], references[:-1]))


FAILED = ray.exceptions.RayTaskError("learn", "model.max_length: too long", ValueError())


def test_the_first_process_answers_for_all(monkeypatch):
    assert learners_that(monkeypatch, "metrics", None, None).wait([0, 1, 2]) == "metrics"


@pytest.mark.parametrize("outcomes", [("metrics", FAILED), (FAILED, FAILED, FAILED), (FAILED, None)])
def test_what_one_process_raised_is_what_the_learner_raised(monkeypatch, outcomes):
    with pytest.raises(ValueError, match="model.max_length: too long"):
        learners_that(monkeypatch, *outcomes).wait(list(range(len(outcomes))))


@pytest.mark.parametrize(("place", "told"), [(0, "the learner's process is gone"), (1, "the learner's process learner-1 is gone")])
def test_a_process_that_is_gone_is_the_reason_of_what_the_others_raise(monkeypatch, place, told):
    outcomes = [FAILED, FAILED, FAILED]
    outcomes[place] = ray.exceptions.RayActorError()
    with pytest.raises(ProcessLost, match=told):
        learners_that(monkeypatch, *outcomes).wait([0, 1, 2])


# ---------------------------------------------------------------- checkpoints
class Rows:
    def __init__(self):
        self.rows = []

    def checkpoint(self, **row):
        self.rows.append(row)


def checkpointer_of(assignment, tmp_path, fail=False):
    class Gang:
        def save(self, root, extra):
            if fail:
                raise OSError("disk full")
            return root / "step_4", {"step": 4}

    rows = Rows()
    return Checkpointer(assignment, Gang(), rows, Emitter(tmp_path / "spool", "driver")), rows


def test_a_checkpoint_is_told_as_writing_then_complete_and_later_with_its_score(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path)
    checkpointer.remember({"critic/score/mean": 0.5, "actor/lr": 1.0})
    identifier = checkpointer.save(1, 4, {})
    assert checkpointer.save(1, 4, {}) == identifier and checkpointer.saved_step == 4
    checkpointer.scored(identifier, {"val/accuracy": 0.25, "val/accuracy/physics": 0.5})
    checkpointer.scored("another", {"val/accuracy": 1.0})
    assert [row["state"] for row in rows.rows] == ["writing", "complete", "complete"]
    assert rows.rows[1]["metrics"] == {"critic/score/mean": 0.5} and rows.rows[2]["metrics"] == {
        "critic/score/mean": 0.5,
        "val/accuracy": 0.25,
    }
    assert {row["checkpoint"] for row in rows.rows} == {identifier} and rows.rows[1]["manifest"]["step"] == 4


def test_lineage_goes_on_from_the_resumed_checkpoint(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path)
    checkpointer.resumed("first", 3)
    second = checkpointer.save(1, 4, {})
    checkpointer.save(1, 5, {})
    assert [row["parent"] for row in rows.rows if row["state"] == "writing"] == ["first", second]


def test_a_save_that_fails_is_told_as_broken_and_ends_the_run(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path, fail=True)
    with pytest.raises(OSError):
        checkpointer.save(1, 4, {})
    assert [row["state"] for row in rows.rows] == ["writing", "broken"] and "disk full" in rows.rows[1]["reason"]


def test_a_save_is_begun_only_with_time_to_spare(assignment, tmp_path):
    checkpointer, _ = checkpointer_of(assignment, tmp_path)
    checkpointer.last_seconds = 10.0
    assert checkpointer.fits(15.1) and not checkpointer.fits(14.9) and checkpointer.fits(float("inf"))


# ---------------------------------------------------------------- deaths around it
def test_a_worker_that_waits_for_a_dead_learners_weights_names_the_learner(monkeypatch):
    def gone(_, reference):
        raise ray.exceptions.RayTaskError("set_weights", "trace", ray.exceptions.ActorDiedError())

    monkeypatch.setattr(gangs.Gang, "_get", gone)
    with pytest.raises(gangs.ProcessLost, match="the learner's process is gone"):
        gangs.Gang.__new__(gangs.Gang).result(0, None)


def test_a_head_that_is_gone_answers_nobody():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert gangs.head_answers(address)
    assert not gangs.head_answers(address)


def test_a_head_that_was_replaced_is_told_from_a_wrong_token():
    told = "RPC error: {}: Perhaps the client is accessing GCS after it has restarted."
    assert head_replaced(ray.exceptions.AuthenticationError(told.format("WrongClusterID")))
    assert not head_replaced(ray.exceptions.AuthenticationError("Authentication failed: a token is missing"))
    assert not head_replaced(RuntimeError("WrongClusterID"))


# ---------------------------------------------------------------- sampling ahead
class Recorder:
    def __init__(self):
        self.sent, self.cancelled_orders, self.reported = [], [], []

    count = 2
    emitter = SimpleNamespace(together=nullcontext)

    def started(self, order, worker, version):
        self.sent.append((order.step, version))

    def ended(self, outcome):
        self.reported.append(outcome)

    def cancelled(self, order, version):
        self.cancelled_orders.append(order)

    def call(self, worker, method, job):
        return WorkerBatch([lost_outcome(order, worker, "", self.version) for order in job.orders], 0.0, 0.0)

    def result(self, worker, batch):
        for outcome in batch.outcomes:
            object.__setattr__(outcome.sample, "termination", Termination.FINISHED)
        return batch


def sampler_of(bound, last=5):
    recorder = Recorder()
    recorder.version = 0
    dispatcher = Dispatcher(recorder, "7")
    workflow = GroupWorkflow(["a", "b"], 4, 2, 1, 1)
    return Sampler(workflow, dispatcher, recorder, 0, 1, bound, SamplingParams(), last), dispatcher, recorder


def drive(bound):
    sampler, dispatcher, recorder = sampler_of(bound)
    for step in range(1, 6):
        batch = sampler.batch(step, Clock())
        assert len(batch.outcomes) == 4 and {outcome.order.step for outcome in batch.outcomes} == {step}
        assert all(step - 1 - outcome.sample.policy_version <= bound for outcome in batch.outcomes)
        dispatcher.version = recorder.version = step
    return recorder.sent


def test_with_bound_zero_each_step_is_ordered_under_the_version_it_learns_from():
    assert sorted(set(drive(0))) == [(step, step - 1) for step in range(1, 6)]


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_with_a_bound_steps_are_ordered_ahead_and_never_beyond_it_or_the_stage(bound):
    ordered = dict(drive(bound))
    assert set(ordered) == {1, 2, 3, 4, 5}
    assert all(ordered[step] == max(0, step - 1 - bound) for step in ordered)


def test_what_was_ordered_ahead_is_cancelled_by_name_on_a_stop():
    sampler, _, recorder = sampler_of(2)
    sampler.batch(1, Clock())
    sampler.cancel()
    assert {order.step for order in recorder.cancelled_orders} == {2, 3} and len(recorder.cancelled_orders) == 8


def test_episodes_staler_than_the_bound_are_reported_and_not_learned_from():
    sampler, dispatcher, recorder = sampler_of(0)
    recorder.version, dispatcher.version = 0, 2
    with pytest.raises(RuntimeError, match="raise max_staleness"):
        sampler.batch(3, Clock())
    assert len(recorder.reported) == 4


def resampler_of(silent_draws, max_draws):
    """Groups of a step's first `silent_draws` draws have no signal, but for group 0."""
    recorder = Recorder()
    recorder.version = 0
    per_draw = 2
    workflow = GroupWorkflow(["a", "b", "c"], 4, 2, 1, 1)

    def silent(samples):
        return {sample.group for sample in samples if sample.group and sample.group // per_draw < silent_draws}

    return Resampler(
        workflow, Dispatcher(recorder, "7"), recorder, 0, 1, 0, SamplingParams(), 5, silent=silent, max_draws=max_draws
    ), recorder


def test_groups_without_signal_are_replaced_by_fresh_ones_and_reported():
    sampler, recorder = resampler_of(silent_draws=2, max_draws=10)
    batch = sampler.batch(1, Clock())
    assert [outcome.order.group for outcome in batch.outcomes] == [0, 0, 4, 4] and batch.draws == 3
    assert [outcome.order.group for outcome in recorder.reported] == [1, 1, 2, 2], "what was replaced is told, once"
    assert len({outcome.order.seed for outcome in batch.outcomes}) == 4
    again, _ = resampler_of(silent_draws=2, max_draws=10)
    assert [outcome.order for outcome in again.batch(1, Clock()).outcomes] == [outcome.order for outcome in batch.outcomes]


def test_the_last_draw_keeps_everything():
    sampler, recorder = resampler_of(silent_draws=99, max_draws=3)
    batch = sampler.batch(1, Clock())
    assert [outcome.order.group for outcome in batch.outcomes] == [0, 0, 4, 4] and batch.draws == 3 and len(recorder.reported) == 4
    with_signal, recorder = resampler_of(silent_draws=0, max_draws=3)
    assert with_signal.batch(1, Clock()).draws == 1 and not recorder.reported


# ---------------------------------------------------------------- metrics of a step
def test_a_clock_adds_up_phases():
    clock = Clock()
    for _ in range(2):
        with clock.measure("report"):
            pass
    clock.add("grade", 1.5)
    seconds = clock.stop()
    assert set(seconds) == {"timing_s/report", "timing_s/grade", "timing_s/step"} and seconds["timing_s/grade"] == 1.5


def test_throughput_counts_devices_and_is_absent_without_tokens():
    assert throughput({"perf/total_num_tokens": 100.0, "timing_s/step": 2.0}, 0) == {"perf/throughput": 50.0}
    assert throughput({"sft/tokens": 100.0, "timing_s/step": 2.0}, 2) == {"perf/throughput": 25.0}
    assert throughput({"timing_s/step": 2.0}, 1) == {}


def test_only_tracked_metrics_name_a_checkpoint_and_a_step_is_said_in_words():
    assert tracked({"val/accuracy": 1.0, "actor/lr": 2.0}) == {"val/accuracy": 1.0}
    assert in_words({"critic/score/mean": 0.5, "timing_s/step": 1.0}) == "reward 0.5000 · 1.00 s"


def test_a_bank_with_nothing_to_train_on_is_refused(config):
    data, _ = write_bank([Task(key="a", split="eval", payload={"x": 1})])
    with pytest.raises(Refused) as refused:
        open_bank(data, config)
    assert refused.value.pointer == "/environment/train_split"


def background_checkpointer(assignment, tmp_path, *answers):
    """Whose learner answers with `answers` when it is asked whether the checkpoint is written."""
    left = list(answers)

    def saved():
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rows, begun = Rows(), []
    gang = SimpleNamespace(begin_save=lambda root, extra: begun.append(root), saved=saved)
    checkpoints = assignment.config.checkpoints.model_copy(update={"in_background": True})
    behind = replace(assignment, config=assignment.config.model_copy(update={"checkpoints": checkpoints}))
    return Checkpointer(behind, gang, rows, Emitter(tmp_path / "spool", "driver")), rows


def test_a_checkpoint_in_the_background_is_complete_when_it_is_written(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, None, None, (Path("/c/step_4"), {"step": 4}))
    checkpointer.remember({"critic/score/mean": 0.5})
    identifier = checkpointer.save(1, 4, {"trained_on": ["a"]})
    checkpointer.remember({"critic/score/mean": 0.75})
    checkpointer.look()
    checkpointer.scored(identifier, {"val/accuracy": 0.25})
    assert checkpointer.save(1, 4, {}) == identifier and [row["state"] for row in rows.rows] == ["writing"]
    checkpointer.finish()
    checkpointer.finish()
    assert [row["state"] for row in rows.rows] == ["writing", "complete"]
    told = rows.rows[1]
    assert (told["path"], told["manifest"], told["trained_on"]) == ("/c/step_4", {"step": 4}, ["a"])
    assert told["metrics"] == {"critic/score/mean": 0.5, "val/accuracy": 0.25}, "of its own step"
    checkpointer.scored(identifier, {"val/accuracy": 0.5})
    assert rows.rows[2]["metrics"]["val/accuracy"] == 0.5


def test_the_next_checkpoint_waits_for_the_one_being_written(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, (Path("/c/step_4"), {"step": 4}))
    first = checkpointer.save(1, 4, {})
    checkpointer.save(1, 5, {})
    assert [(row["step"], row["state"]) for row in rows.rows] == [(4, "writing"), (4, "complete"), (5, "writing")]
    assert rows.rows[2]["parent"] == first


def test_a_checkpoint_that_breaks_in_the_background_ends_the_run(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, OSError("disk full"))
    checkpointer.save(1, 4, {})
    with pytest.raises(OSError):
        checkpointer.look()
    assert [row["state"] for row in rows.rows] == ["writing", "broken"] and "disk full" in rows.rows[1]["reason"]
