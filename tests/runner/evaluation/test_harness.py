"""An evaluation from its config to results.jsonl, on a toy repair in sandboxes of processes."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from runner.assignment import Assignment, Bundle, Refused
from runner.contract.bank import write_bank
from runner.contract.evaluation_config import parse_evaluation
from runner.evaluation.harness import Harness
from runner.learning import checkpoints
from runner.repair.cache import TaskCache
from runner.reporting.heartbeat import StopRequest, Vitals
from runner.sandbox.locks import try_lock
from tests.runner.completion_server import CompletionServer
from tests.runner.environments.toy_repair import FIX, TEST, make_task, numbered
from tests.runner.sandbox.test_process_backend import why_not
from tests.runner.tiny_models import save_tiny, tiny_tokenizer

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Heard:
    """Emitter and control of one attempt: remembers what it was told."""

    def __init__(self):
        self.episodes, self.points, self.events, self.anchors_told, self.states, self.warmed_told = [], [], [], [], [], []

    def episode_event(self, episode, kind, ordinal, data, at=None):
        self.episodes.append((episode, str(kind), data))

    def emit_points(self, step, values, wall=None):
        self.points.append((step, values))

    def event(self, kind, step, data):
        self.events.append((kind, data))

    def log(self, level, message, component=None):
        pass

    def state(self, state, phase, first_step=None):
        self.states.append((state, first_step))

    def anchors(self, results, finished=False):
        self.anchors_told += [*results, *(["finished"] if finished else [])]

    def warmed(self, results):
        self.warmed_told += results

    def regrades(self, results):
        self.regraded = results

    def of(self, kind):
        return [data for _, heard, data in self.episodes if heard == kind]


@pytest.fixture
def house(tmp_path, monkeypatch):
    """house(test=…, **document) → a harness on the toy task, and what it told."""
    monkeypatch.setenv("ASSAY_NODE_FOLDER", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()

    def make(test=TEST, attempt="1", task=None, folder="run", checkpoint=None, **document):
        cache = TaskCache(tmp_path / "cache" / "tasks")
        data, found = write_bank([make_task(tmp_path / f"task-{attempt}", cache, test, **(task or {}))])
        given = {"name": "toy", **document}
        given["environment"] = {"type": "harbor", "backend": "process", "version": found, **document.get("environment", {})}
        storage = tmp_path / "runs" / folder
        grant = (Bundle("driver", cpus=1.0),)
        more = {"model_checkpoint": checkpoint}
        assignment = Assignment("run", attempt, int(attempt), parse_evaluation(given), storage, grant, tmp_path / "cache", **more)
        assignment.folder.mkdir(parents=True)
        heard = Heard()
        return Harness(assignment, data, heard, heard, Vitals(), StopRequest()), heard

    return make


def lines(harness):
    found = [json.loads(line) for line in (harness.ledger.folder / "results.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda entry: (entry["agent"], entry["sample"]))


def test_the_anchors_are_told_as_they_come_and_told_finished(house):
    harness, heard = house(agent="anchors")
    assert harness.run() == "succeeded"
    *results, last = heard.anchors_told
    assert last == "finished"
    assert {(item["agent"], item["score"], item["raw_reward"], item["floor"]) for item in results} == {
        ("oracle", 1.0, 1.0, 0.35),
        ("nop", 0.0, 0.0, 0.35),
    }
    assert all(
        item["task"] == "demo/heat-repair-sign" and item["timings"]["verifier"] > 0 and item["backend"] == "process" for item in results
    )
    assert heard.states == [("running", 0)] and [step for step, _ in heard.points] == [1, 2]
    assert not heard.events, "the anchors are the bank's business, and no evaluation"
    facts = [data["facts"] for data in heard.of("finished")]
    assert {item["agent"] for item in facts} == {"oracle", "nop"} and all(item["isolation"] == "weak" for item in facts)
    graded = {data["score"]: data for data in heard.of("graded")}
    assert graded[1.0]["evidence"]["delivered"] and graded[1.0]["checks"] == {"check_heat_32": 1.0}


def test_a_verifier_that_gives_no_reward_is_named_and_is_no_zero(house):
    harness, heard = house("#!/bin/sh\nexit 1\n", agent="anchors", environment={"regrade": False})
    assert harness.run() == "succeeded"
    assert [item["score"] for item in heard.anchors_told[:2]] == [None, None]
    assert all("reward" in item["reason"] for item in heard.anchors_told[:2])
    assert [entry["score"] for entry in lines(harness)] == [None, None] and {entry["error_class"] for entry in lines(harness)} == {"other"}


def test_an_oracles_evaluation_has_lines_summary_and_protocol(house):
    harness, heard = house(agent="oracle", selection={"samples": 2})
    assert harness.run() == "succeeded"
    found = lines(harness)
    assert [(entry["sample"], entry["score"], entry["success"], entry["error_class"]) for entry in found] == [
        (0, 1.0, True, "ok"),
        (1, 1.0, True, "ok"),
    ]
    summary = json.loads((harness.ledger.folder / "summary.json").read_text())
    assert summary["overall"]["mean_score"] == 1.0 and summary["overall"]["n_trials"] == 2
    assert set(summary["by_family"]) == {"repair/sign/"} and summary["config"]["agent"] == "oracle" and summary["errors"] == {}
    [(kind, told)] = heard.events
    assert kind == "evaluation" and told["summary"] == summary and told["protocol"]["samples_per_task"] == 2
    [result] = told["results"]
    assert result["score"] == 1.0 and [entry["sample"] for entry in result["records"]] == [0, 1]
    assert {data["evaluation"] for data in heard.of("started")} == {told["evaluation"]}


def test_an_attempt_goes_on_where_the_one_before_it_broke_off(house):
    first, _ = house(agent="oracle", selection={"samples": 2})
    done, _ = first.trials
    first.ledger.add({**_line(first, done), "score": 0.25})
    first.ledger.add({**_line(first, first.trials[1]), "score": None})
    with open(first.ledger.folder / "results.jsonl", "a") as file:
        file.write('{"task_name": "demo/heat-rep')
    second, heard = house(agent="oracle", selection={"samples": 2}, attempt="2")
    assert second.run() == "succeeded" and heard.states == [("running", 1)]
    assert [(entry["sample"], entry["score"]) for entry in lines(second)] == [(0, 0.25), (1, 1.0)], "ungraded ones are run again"
    assert len(heard.of("started")) == 1


def _line(harness, trial):
    from runner.contract.termination import Termination
    from runner.evaluation.trials import Ended, record

    return record(trial, Ended("0" * 36, Termination.FINISHED, "", 0.0, 1.0, None, {}))


def test_a_stop_ends_what_runs_and_keeps_what_ended(house):
    harness, heard = house("#!/bin/sh\nsleep 600\n", agent="nop")
    result = []
    thread = threading.Thread(target=lambda: result.append(harness.run()))
    thread.start()
    deadline = time.monotonic() + 120
    while not heard.of("started") and time.monotonic() < deadline:
        time.sleep(0.1)
    harness.stop.ask("stop requested", 30.0)
    thread.join(120)
    assert result == ["stopped"] and heard.states[-1][0] == "stopping"
    assert not heard.of("finished") and not heard.events and not (harness.ledger.folder / "summary.json").exists()


def test_a_node_without_an_engine_refuses_before_anything_starts(house, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    harness, heard = house(agent="anchors", environment={"backend": "docker"})
    with pytest.raises(Refused, match="daemon|engine") as refused:
        harness.run()
    assert refused.value.pointer == "/environment/backend" and not heard.episodes and not heard.states


def test_another_bank_and_an_empty_selection_are_refused(house):
    with pytest.raises(Refused, match="digest"):
        house(agent="nop", environment={"version": "0" * 64})
    with pytest.raises(Refused, match="no task is left after selection.task_glob"):
        house(agent="nop", attempt="2", selection={"task_glob": "other/*"})


def test_a_served_model_chooses_from_the_menu_and_its_words_are_counted(house, chat_server):
    def reply(body):
        options = numbered(body["messages"][-1]["content"])
        wanted = (FIX["file"], FIX["label"], "keep the edit")
        return next(options[option] for option in wanted if option in options)

    url = chat_server(reply)
    model = {"source": {"type": "served", "name": "m", "url": url}, "max_length": 4096}
    harness, heard = house(agent="model", model=model, environment={"agent": {"type": "menu"}})
    assert harness.run() == "succeeded"
    [entry] = lines(harness)
    assert (entry["score"], entry["agent"], entry["error_class"]) == (1.0, "menu", "ok") and entry["n_turns"] >= 2
    assert entry["n_output_tokens"] == entry["n_turns"] and entry["prompt_chars"] > 0 and entry["traj_chars"] > entry["prompt_chars"]
    assert [turn["author"] for turn in heard.of("turn")][:2] == ["environment", "student"]
    [(_, told)] = heard.events
    assert told["summary"]["config"]["model"]["is_base"] and told["label"] == "menu, base model"


def test_an_endpoint_acts_token_by_token_with_the_models_own_tokenizer(house, tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")

    def answer(body):
        *_, question, _ = tokenizer.decode(body["prompt"]).split("<|im_start|>")
        options = numbered(question.removesuffix("<|im_end|>"))
        wanted = (FIX["file"], FIX["label"], "keep the edit")
        ids = tokenizer.encode(next(options[option] for option in wanted if option in options), add_special_tokens=False)
        ids.append(tokenizer.eos_token_id)
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.1] * len(ids)}, "finish_reason": "stop"}]}

    server = CompletionServer(answer)
    source = {"type": "endpoint", "name": "m", "url": server.url, "tokenizer": str(tmp_path / "tokenizer")}
    model = {"source": source, "max_length": 4096}
    try:
        harness, heard = house(agent="model", model=model, sampling={"max_new_tokens": 8}, environment={"agent": {"type": "menu"}})
        assert harness.run() == "succeeded"
    finally:
        server.close()
    [entry] = lines(harness)
    assert (entry["score"], entry["error_class"]) == (1.0, "ok") and entry["n_turns"] == len(server.bodies) >= 2
    assert all(body["model"] == "m" and body["max_tokens"] == 8 and isinstance(body["prompt"], list) for body in server.bodies)


def test_an_endpoint_that_fails_ends_the_episode_with_its_words_and_no_score(house, tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    server = CompletionServer(lambda body: (404, "no model m", {}))
    source = {"type": "endpoint", "name": "m", "url": server.url, "tokenizer": str(tmp_path / "tokenizer")}
    try:
        harness, heard = house(agent="model", model={"source": source, "max_length": 4096}, environment={"agent": {"type": "menu"}})
        assert harness.run() == "succeeded"
    finally:
        server.close()
    [entry] = lines(harness)
    assert entry["score"] is None and "answered 404: no model m" in json.dumps([entry, heard.of("finished")])


def test_an_endpoints_tokenizer_must_be_on_the_node(house):
    source = {"type": "endpoint", "name": "m", "url": "http://127.0.0.1:1/v1", "tokenizer": "/nowhere"}
    harness, heard = house(agent="model", model={"source": source}, environment={"agent": {"type": "menu"}})
    with pytest.raises(Refused, match="/nowhere") as refused:
        harness.run()
    assert refused.value.pointer == "/model/source/tokenizer" and not heard.episodes


def test_saved_deliveries_are_graded_once_more(house):
    first, heard = house(agent="oracle")
    assert first.run() == "succeeded"
    [graded] = heard.of("graded")
    saved = {"episode": "e1", "task": "demo/heat-repair-sign", "artifacts": graded["evidence"]["artifacts"]}
    second, heard = house(agent="regrade", saved=[saved], attempt="2", folder="regrade")
    assert second.run() == "succeeded"
    [told] = heard.regraded
    assert (told["episode"], told["score"], told["checks"]) == ("e1", 1.0, {"check_heat_32": 1.0})
    assert not heard.episodes and not heard.events


# ---------------------------------------------------------------- checkpoints
@pytest.fixture
def checkpoint(tmp_path):
    """A complete checkpoint of step 7: its folder and the revision that names it."""
    manifest = checkpoints.Manifest(7, 0, "grpo", 7, False, "0" * 64, {"learners": 1}, {"torch": "2"}, {"seed": 0})
    path = checkpoints.write(
        tmp_path / "checkpoints", manifest, lambda folder: save_tiny(folder / "model", max_position_embeddings=2048) and None
    )
    return path, checkpoints.read_manifest(path).revision


def by_checkpoint(revision):
    model = {"source": {"type": "checkpoint", "checkpoint": "c", "revision": revision}, "max_length": 1024}
    return {"agent": "model", "model": model, "sampling": {"max_new_tokens": 4}, "environment": {"agent": {"type": "menu"}}}


def test_a_checkpoints_weights_act_and_the_step_that_was_loaded_is_in_the_result(house, checkpoint):
    path, revision = checkpoint
    harness, heard = house(checkpoint=path, **by_checkpoint(revision))
    assert harness.run() == "succeeded"
    [(_, told)] = heard.events
    assert told["label"] == "menu, checkpoint of step 7" and told["summary"]["config"]["model"]["loaded_step"] == 7
    assert not told["summary"]["config"]["model"]["is_base"]
    [entry] = lines(harness)
    assert entry["score"] in (0.0, 1.0) and entry["n_turns"] >= 1 and entry["n_output_tokens"] <= 4 * entry["n_turns"]
    finished = heard.of("finished")[0]
    assert finished["facts"]["agent"] == "menu" and finished["facts"]["phases"]["verifier"] > 0


def test_no_other_weights_stand_for_a_checkpoint(house, checkpoint):
    path, revision = checkpoint
    harness, _ = house(checkpoint=path, **by_checkpoint("f" * 64))
    with pytest.raises(Refused, match="pinned ffffffffffffffff"):
        harness.run()
    (path / "model" / "config.json").write_text("{}")
    harness, heard = house(checkpoint=path, attempt="2", **by_checkpoint(revision))
    with pytest.raises(Refused, match="not a complete checkpoint"):
        harness.run()
    harness, heard = house(attempt="3", **by_checkpoint(revision))
    with pytest.raises(Refused, match="cannot be located"):
        harness.run()
    assert not heard.episodes


# ---------------------------------------------------------------- warming
WARMING = {"agent": "warming", "resources": {"node": "n1"}}


def test_a_warming_tells_how_each_task_came_through_and_what_nop_earned(house):
    harness, heard = house(**WARMING)
    assert harness.run() == "succeeded"
    [told] = heard.warmed_told
    assert (told["task"], told["termination"], told["score"], told["passes"], told["reason"]) == (
        "demo/heat-repair-sign",
        "finished",
        0.0,
        1,
        "",
    )
    assert 0 < told["env_setup_seconds"] < 40 and told["verifier_seconds"] > 0
    assert [(item["agent"], item["score"]) for item in heard.anchors_told] == [("nop", 0.0)]
    assert not heard.events and [step for step, _ in heard.points] == [1]
    assert json.loads((harness.ledger.folder / "jobs" / "warmth.json").read_text())["warm"] is True


def test_a_task_that_failed_is_warmed_once_more_and_is_no_further_progress(house):
    harness, heard = house(test="#!/bin/sh\nexit 1\n", **WARMING)
    assert harness.run() == "succeeded", "the node is cold, but the passes came to their end"
    assert [(item["passes"], item["score"]) for item in heard.warmed_told] == [(1, None), (2, None)]
    assert "reward" in heard.warmed_told[-1]["reason"] and heard.anchors_told == []
    assert [step for step, _ in heard.points] == [1] and len({episode for episode, _, _ in heard.episodes}) == 2


def test_the_next_attempt_warms_everything_anew(house):
    assert house(**WARMING)[0].run() == "succeeded"
    again, heard = house(attempt="2", **WARMING)
    assert again.run() == "succeeded" and len(heard.warmed_told) == 1


def test_a_second_warming_of_the_node_is_refused_while_one_runs(house):
    harness, heard = house(**WARMING)
    site = harness._site(SimpleNamespace(phase=None))
    site.node_folder.mkdir(parents=True, exist_ok=True)
    held = try_lock(site.node_folder / "warming")
    with pytest.raises(Refused, match="another warming runs; wait for it") as refused:
        harness.run()
    assert refused.value.pointer == "/resources/node" and heard.warmed_told == []
    held.release()
