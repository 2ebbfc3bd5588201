"""Launching, watching and changing runs from the command line, against the real API."""

import json
import uuid

import pytest
from django.utils import timezone

from controlplane.checkpoints.models import Checkpoint
from controlplane.cli import follow
from controlplane.cluster.models import Node
from controlplane.episodes.models import Episode
from controlplane.runs.models import Run
from controlplane.telemetry.models import LogLine
from tests.controlplane.api.test_launch import DOCUMENT, TOML
from tests.controlplane.factories import make_attempt, make_run
from tests.controlplane.runs.conftest import make_bank


@pytest.fixture(autouse=True)
def house(team, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    make_bank(team)
    Node.objects.create(
        name="node-1", address="127.0.0.1", cpus=4, memory=16 << 30, disk_total=1 << 40, disk_free=1 << 39, last_seen_at=timezone.now()
    )


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    return str(tmp_path / "run.toml")


# ---------------------------------------------------------------- launch
def test_a_file_is_launched(assay, file):
    code, out, err = assay("launch", file)
    run = Run.objects.get()
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{run.pk}  three doors", f"http://127.0.0.1:8000/runs/{run.pk}"]
    assert (run.state, run.document) == ("queued", DOCUMENT)


def test_toml_yaml_and_json_give_the_same_bytes(assay, file, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(DOCUMENT))
    from ruamel.yaml import YAML

    with (tmp_path / "run.yaml").open("w") as stream:
        YAML().dump(DOCUMENT, stream)
    for name in ("run.toml", "run.json", "run.yaml"):
        assert assay("launch", str(tmp_path / name))[0] == 0
    assert len({bytes(run.config) for run in Run.objects.all()}) == 1


def test_set_changes_the_document_before_it_is_sent(assay, file):
    assert assay("launch", file, "--set", "stages[1].optimizer.learning_rate=5e-4", "--set", "/seed=9")[0] == 0
    run = Run.objects.get()
    assert run.seed == 9
    assert json.loads(bytes(run.config))["stages"][1]["optimizer"]["learning_rate"] == 5e-4


def test_what_is_wrong_is_one_line_a_field_and_exit_code_1(assay, file):
    code, out, err = assay("launch", file, "--set", "stages[1].group_size=3", "--set", "colour=red", "--set", "environment.bank=nothing")
    assert (code, out) == (1, "")
    assert sorted(line.partition(":")[0] for line in err.splitlines()) == ["colour", "stages[1].group_size"]
    assert not Run.objects.exists()


def test_check_says_what_it_would_cost_and_launches_nothing(assay, file):
    code, out, _ = assay("launch", file, "--check")
    assert code == 0 and "config " in out
    code, out, _ = assay("launch", file, "--check", "--set", "environment.bank=nothing")
    assert code == 1 and "error  environment.bank" in out
    assert not Run.objects.exists()


def test_the_same_key_launches_once(assay, file):
    outputs = {assay("launch", file, "--key", "k")[1] for _ in range(3)}
    assert len(outputs) == 1 and Run.objects.count() == 1
    code, _, err = assay("launch", file, "--key", "k", "--set", "seed=1")
    assert code == 1 and "new key" in err


def test_a_preset_is_launched(assay):
    assert assay("launch", "--preset", "sample")[0] == 0
    assert json.loads(bytes(Run.objects.get().config))["preset"] == "sample@1"


@pytest.mark.parametrize("end, code", [("succeeded", 0), ("failed", 4), ("stopped", 4)])
def test_wait_follows_to_the_end_and_tells_it_in_the_exit_code(assay, file, monkeypatch, end, code):
    monkeypatch.setattr(follow.time, "sleep", lambda _: Run.objects.update(state=end, reason="because"))
    found, out, _ = assay("launch", file, "--wait")
    assert found == code
    assert out.splitlines()[-1] == f"three doors {end.upper()} at step 0 of 5: because"


# ---------------------------------------------------------------- reading
@pytest.fixture
def run(team, owner):
    run = make_run(team, name="watched", owner=owner, step=3, latest={"reward": {"value": 0.25, "step": 3, "attempt": 1}})
    make_attempt(run)
    return run


def test_runs_are_listed_newest_first(assay, run, team):
    newer = make_run(team, name="newer", state="failed")
    code, out, _ = assay("runs")
    assert code == 0
    assert [line[:8] for line in out.splitlines()] == [str(newer.pk)[:8], str(run.pk)[:8]]
    assert "active  step 3/100  reward 0.25" in out
    assert [json.loads(line)["name"] for line in assay("runs", "--json", "--state", "failed")[1].splitlines()] == ["newer"]


def test_show_tells_of_one_run_by_the_beginning_of_its_id(assay, run):
    for given in (str(run.pk), str(run.pk)[:6], "latest"):
        code, out, _ = assay("show", given)
        assert code == 0 and "watched" in out and "3 of 100" in out


@pytest.mark.parametrize("given, words", [("ab", "too short"), ("zzzzzz", "no run's id begins"), (str(uuid.UUID(int=1)), "no such object")])
def test_an_unknown_run_is_told_as_such(assay, run, given, words):
    code, _, err = assay("show", given)
    assert code == 1 and words in err


def test_logs_come_in_order_and_cannot_touch_the_terminal(assay, run):
    for number, message in enumerate(["first", "\x1b[31mred\x07", "third"]):
        LogLine.objects.create(run=run, attempt=1, t=1000.0 + number, component="driver", level="info", message=message)
    code, out, _ = assay("logs", str(run.pk))
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["first", "�[31mred�", "third"]
    assert "\x1b" not in out and "\x07" not in out


def test_following_logs_ends_with_the_run(assay, run, monkeypatch):
    from controlplane.cli import commands

    LogLine.objects.create(run=run, attempt=1, t=1000.0, component="driver", level="info", message="one")

    def later(_):
        if Run.objects.filter(state="active").exists():
            LogLine.objects.create(run=run, attempt=1, t=1001.0, component="driver", level="info", message="two")
            Run.objects.update(state="succeeded")

    monkeypatch.setattr(commands.time, "sleep", later)
    code, out, _ = assay("logs", str(run.pk), "--follow")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["one", "two"]


def test_failed_episodes_are_listed(assay, run):
    values = {"run": run, "attempt": 1, "step": 1, "state": "done", "termination": "finished", "parsed": True}
    Episode.objects.create(task="right", score=1.0, **values)
    wrong = Episode.objects.create(task="wrong", sample=1, score=0.0, **values)
    code, out, _ = assay("episodes", str(run.pk), "--failed")
    assert code == 0
    assert out.splitlines() == [f"{wrong.pk}  step 1  score 0  finished  wrong"]
    assert len(assay("episodes", str(run.pk))[1].splitlines()) == 2


# ---------------------------------------------------------------- verbs
def test_a_waiting_run_is_stopped(assay, file):
    assay("launch", file)
    code, out, _ = assay("stop", "latest")
    assert (code, Run.objects.get().state) == (0, "stopped")
    assert out.startswith("stopped")


def test_a_refusal_of_a_verb_is_its_reason(assay, run):
    code, _, err = assay("resume", str(run.pk))
    assert code == 1 and "active" in err


def test_an_ended_run_is_resumed_from_its_checkpoint(assay, run, tmp_path):
    run.attempts.update(state="failed")
    Run.objects.update(state="failed")
    Checkpoint.objects.create(run=run, attempt=1, step=2, path=str(tmp_path / "c"), state="complete")
    code, out, _ = assay("resume", str(run.pk))
    assert (code, Run.objects.get().state) == (0, "queued")


def test_a_clone_with_one_key_changed(assay, file):
    assay("launch", file)
    parent = Run.objects.get()
    code, _, _ = assay("clone", str(parent.pk), "--set", "/stages/1/optimizer/learning_rate=1e-3")
    child = Run.objects.exclude(pk=parent.pk).get()
    assert (code, child.parent) == (0, parent)
    before, after = (json.loads(bytes(run.config)) for run in (parent, child))
    assert after["stages"][1]["optimizer"].pop("learning_rate") == 1e-3
    before["stages"][1]["optimizer"].pop("learning_rate")
    assert before == after
