"""Real runs of the driver on a real local Ray: a random two-layer model, thirty questions, no control plane."""

import filecmp
import math
import os
import re
import signal
import time

import msgpack
import numpy as np
import psutil
import pytest
import zstandard

from runner.contract.episode import Trace
from runner.contract.events import decode_batch, encode_batch
from runner.contract.metrics import lookup
from tests.runner.loop.conftest import finish, start

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CLOCKED = ("timing_s/", "perf/throughput", "memory/", "cpu/")


def repeatable(points):
    return {key: value for key, value in points.items() if not key[0].startswith(CLOCKED)}


def log_has(out, text, number=1):
    path = out / "attempts" / str(number) / "driver.log"
    return path.exists() and text in path.read_text()


def wait_for_log(process, out, text, number=1, seconds=600):
    end = time.monotonic() + seconds
    while not log_has(out, text, number):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, f"{text!r} not logged within {seconds} s"
        time.sleep(0.02)


def actors(out):
    """The processes this run registered, by name: other runs on the machine are none of our business."""
    log = (out / "attempts" / "1" / "driver.log").read_text()
    return {name: psutil.Process(int(pid)) for name, pid in re.findall(r"(learner|worker-\d+) is process (\d+)", log)}


def weights(out, number, step):
    return out / "checkpoints" / f"attempt_{number}" / f"step_{step}"


# ---------------------------------------------------------------- one whole run
def test_the_run_succeeds_and_says_so(unbroken):
    assert unbroken.status == 0, unbroken.output
    assert unbroken.record["outcome"] == "succeeded" and unbroken.record["step"] == 8 and unbroken.record["error"] is None


def test_every_step_has_its_metrics_and_only_once(unbroken):
    names = [(batch.points.names[series], int(step)) for batch in unbroken.batches for series, step in zip(batch.points.series, batch.points.step)]
    assert len(names) == len(set(names)), "no point is told twice"
    points = unbroken.points()
    for step in range(1, 4):
        assert math.isfinite(points["sft/loss", step]) and ("critic/score/mean", step) not in points
    grpo = ["critic/score/mean", "reward/missing_fraction", "response_length/mean", "termination/finished/fraction", "rollout_corr/kl", "actor/entropy",
            "actor/grad_norm", "timing_s/wait", "timing_s/generate", "timing_s/grade", "timing_s/learn", "timing_s/sync", "timing_s/step", "perf/throughput",
            "staleness/max", "weight_sync/probe_difference"]
    for step in range(4, 9):
        assert [name for name in grpo if (name, step) not in points] == []
        assert points["staleness/max", step] == 0 and abs(points["rollout_corr/kl", step]) < 1e-5
        assert points["weight_sync/probe_difference", step] < 1e-4


def test_rewards_differ_and_move_the_weights(unbroken):
    """Otherwise the comparisons of bits below would compare a model that stands still."""
    points = unbroken.points()
    assert sum(points["actor/grad_norm", step] > 0 for step in range(4, 9)) >= 3
    assert 0 < sum(points["critic/score/mean", step] for step in range(4, 9)) < 5
    after_sft, after_grpo = (weights(unbroken.out, 1, step) / "model" / "model.safetensors" for step in (3, 8))
    assert not filecmp.cmp(after_sft, after_grpo, shallow=False)


def test_every_metric_is_in_the_dictionary(unbroken):
    unknown = {name for name, _ in unbroken.points() if lookup(name) is None}
    assert unknown - {"group/effective", "group/trainable"} == set()


def test_episodes_carry_five_events_and_readable_tokens(unbroken):
    blobs = {name: content for batch in unbroken.batches for name, content in batch.blobs.items()}
    episodes = [events for events in unbroken.episodes().values() if events["started"][0]["purpose"] == "train"]
    assert len(episodes) == 5 * 16
    for events in episodes:
        assert {kind: len(found) for kind, found in events.items()} == {"started": 1, "turn": 3, "finished": 1, "graded": 1, "trained": 1}
        started, finished, trained = events["started"][0], events["finished"][0], events["trained"][0]
        assert 4 <= started["step"] <= 8 and started["stage"] == 1 and started["policy_version"] == started["step"] - 1 == finished["policy_version"]
        sampled, learned = Trace.open(blobs[finished["sampled"]]), Trace.open(blobs[trained["trained"]])
        texts = msgpack.unpackb(zstandard.decompress(blobs[finished["token_texts"]]))
        assert sampled.tokens == learned.tokens == len(texts) == finished["prompt_tokens"] + finished["response_tokens"]
        assert np.isfinite(sampled.read()["logprob"]).sum() == finished["response_tokens"]


def test_groups_share_a_task_and_steps_differ(unbroken):
    groups = {}
    for events in unbroken.episodes().values():
        started = events["started"][0]
        if started["purpose"] == "train":
            groups.setdefault((started["step"], started["group"]), []).append(started)
    assert len(groups) == 5 * 4
    for members in groups.values():
        assert sorted(member["sample"] for member in members) == [0, 1, 2, 3]
        assert len({(member["task"], member["seed"], member["worker"]) for member in members}) == 1


def test_held_out_scores_come_before_during_and_after(unbroken):
    evaluations = [event["data"] for event in unbroken.events("evaluation")]
    assert [(item["label"], item["step"]) for item in evaluations] == [("before stage 0", 0), ("after stage 0", 3), ("step 6", 6), ("after stage 1", 8)]
    episodes = unbroken.episodes()
    for item in evaluations:
        assert len(item["results"]) == 10 and {result["task"] for result in item["results"]} == {f"eval-{number}" for number in range(20, 30)}
        scores = [result["score"] for result in item["results"] if result["score"] is not None]
        assert item["summary"]["accuracy"] == pytest.approx(np.mean(scores)) and item["baselines"]["chance"] == 0.25
        assert item["summary"]["forced_choice"] == pytest.approx(np.mean([result["forced"] for result in item["results"]]))
        for result in item["results"]:
            started = episodes[result["episode"]]["started"][0]
            assert started["purpose"] == "eval" and started["evaluation"] == item["evaluation"] and "finished" in episodes[result["episode"]]
        assert unbroken.points()["val/accuracy", item["step"]] == item["summary"]["accuracy"]
    assert evaluations[-1]["checkpoint"] and evaluations[0]["protocol"] == evaluations[-1]["protocol"]
    train = {events["started"][0]["task"] for events in episodes.values() if events["started"][0]["purpose"] == "train"}
    assert all(task.startswith("train-") for task in train), "held-out tasks are never trained on"


def test_the_driver_stays_small(unbroken):
    """Torch in the driver would cost hundreds of MiB in each run."""
    rss = [value for batch in unbroken.batches for series, value in zip(batch.samples.series, batch.samples.value) if batch.samples.names[series] == "memory/driver/rss"]
    assert rss and max(rss) < 200 << 20


def test_what_is_in_the_spool_is_what_ingest_takes(unbroken):
    for batch in unbroken.batches:
        assert decode_batch(encode_batch(batch)).sequence == batch.sequence


def test_checkpoints_are_where_the_config_wants_them(unbroken):
    found = sorted(path.name for path in (unbroken.out / "checkpoints" / "attempt_1").iterdir())
    assert found == ["step_2", "step_3", "step_4", "step_6", "step_8"]


# ---------------------------------------------------------------- the same bits
def test_the_same_run_again_gives_the_same_bits(unbroken, tmp_path, document, bank_file, ray_address):
    again = finish(start(tmp_path, document, bank_file, ray_address), tmp_path)
    assert again.status == 0, again.output
    assert repeatable(again.points()) == repeatable(unbroken.points())
    assert filecmp.cmp(weights(tmp_path, 1, 8) / "model" / "model.safetensors", weights(unbroken.out, 1, 8) / "model" / "model.safetensors", shallow=False)


@pytest.mark.parametrize("after, resume_at", [("step 2 ", 2), ("step 5 ", 5)])
def test_stopped_and_resumed_equals_never_stopped(unbroken, tmp_path, document, bank_file, ray_address, after, resume_at):
    """SIGTERM after a step; the second attempt goes on from the checkpoint of the stop. Metrics and weights are equal to the last bit."""
    process = start(tmp_path, document, bank_file, ray_address)
    wait_for_log(process, tmp_path, after)
    os.kill(process.pid, signal.SIGTERM)
    stopped = finish(process, tmp_path)
    assert stopped.status == 0 and stopped.record["outcome"] == "stopped" and stopped.record["reason"] == "terminated", stopped.output
    step = stopped.record["step"]
    assert resume_at <= step < 8
    checkpoint = weights(tmp_path, 1, step)
    resumed = finish(start(tmp_path, document, bank_file, ray_address, "--resume", str(checkpoint)), tmp_path, number=2)
    assert resumed.status == 0 and resumed.record["outcome"] == "succeeded", resumed.output
    told = {**repeatable(stopped.points()), **repeatable(resumed.points())}
    assert told == repeatable(unbroken.points())
    assert filecmp.cmp(weights(tmp_path, 2, 8) / "model" / "model.safetensors", weights(unbroken.out, 1, 8) / "model" / "model.safetensors", shallow=False)
    assert min(step_of for name, step_of in resumed.points() if name == "timing_s/step") == step + 1


# ---------------------------------------------------------------- death
def test_kill_minus_nine_of_the_driver_ends_its_actors_and_gives_the_group_back(tmp_path, document, bank_file, ray_address):
    process = start(tmp_path, document, bank_file, ray_address)
    wait_for_log(process, tmp_path, "step 1 ")
    mine = list(actors(tmp_path).values())
    assert len(mine) == 3
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    gone, alive = psutil.wait_procs(mine, timeout=30)
    assert not alive
    # A new run of the same size finds the room the dead one held.
    again = finish(start(tmp_path, {**document, "stages": document["stages"][:1], "evaluation": {"type": "none"}}, bank_file, ray_address), tmp_path, number=2)
    assert again.status == 0, again.output


def test_a_worker_that_dies_is_replaced_and_the_run_keeps_its_numbers(unbroken, tmp_path, document, bank_file, ray_address):
    process = start(tmp_path, document, bank_file, ray_address)
    wait_for_log(process, tmp_path, "step 4 ")
    actors(tmp_path)["worker-1"].kill()
    survived = finish(process, tmp_path)
    assert survived.status == 0 and survived.record["outcome"] == "succeeded", survived.output
    assert log_has(tmp_path, "was lost and is replaced")
    ours = {key: value for key, value in repeatable(survived.points()).items() if key[0].startswith(("val/", "actor/grad_norm", "actor/pg_loss"))}
    reference = repeatable(unbroken.points())
    assert ours == {key: reference[key] for key in ours}


# ---------------------------------------------------------------- refusals
def refused(out, document, bank_file, ray_address):
    done = finish(start(out, document, bank_file, ray_address), out)
    assert done.status == 1 and done.record["outcome"] == "failed", done.output
    return done.record["error"]


def test_a_context_too_short_for_a_prompt_is_refused_naming_the_task(tmp_path, document, bank_file, ray_address):
    error = refused(tmp_path, {**document, "model": {**document["model"], "max_length": 40}}, bank_file, ray_address)
    assert error["pointer"] == "/model/max_length" and error["value"] == 40 and "task 'train-" in error["message"] or "task 'eval-" in error["message"]


def test_a_gang_that_gets_no_room_fails_with_the_groups_name(tmp_path, document, bank_file, ray_address, monkeypatch):
    resources = {**document["resources"], "learner_cpus": 64}
    error = refused(tmp_path, {**document, "resources": resources}, bank_file, ray_address)
    assert "placement group not ready" in error["message"] and "assay-local" in error["message"]


def test_a_warm_start_without_demonstrations_is_refused_at_its_kind(tmp_path, document, bank_file, ray_address):
    stages = [{**document["stages"][0], "kinds": ["poems"]}]
    error = refused(tmp_path, {**document, "stages": stages}, bank_file, ray_address)
    assert error["pointer"] == "/stages/0/kinds" and "statement" in error["message"]


def test_a_broken_bank_and_an_empty_split_are_refused(tmp_path, document, bank_file, ray_address):
    broken = tmp_path / "broken.zst"
    broken.write_bytes(b"not a bank")
    assert refused(tmp_path / "a", document, broken, ray_address)["pointer"] == "/environment/bank"
    environment = {"type": "quiz", "train_split": "nothing"}
    assert refused(tmp_path / "b", {**document, "environment": environment}, bank_file, ray_address)["pointer"] == "/environment/train_split"


def test_a_config_that_is_wrong_is_refused_line_by_line(tmp_path, document, bank_file, ray_address):
    done = finish(start(tmp_path, {**document, "stages": [{**document["stages"][1], "batch_size": 10}]}, bank_file, ray_address), tmp_path)
    assert done.status == 1 and "/stages/0/group_size" in done.output and not (tmp_path / "attempts").exists()


def test_a_model_that_is_not_there_is_refused_at_its_field(tmp_path, document, bank_file, ray_address):
    model = {**document["model"], "source": {"type": "path", "path": str(tmp_path / "nowhere")}}
    error = refused(tmp_path, {**document, "model": model}, bank_file, ray_address)
    assert error["pointer"] == "/model/source/path" and "nowhere" in error["message"] and "Traceback" in error["traceback"]
    assert log_has(tmp_path, "nowhere")
