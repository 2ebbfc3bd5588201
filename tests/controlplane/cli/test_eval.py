"""`assay eval` against the real API."""

import json

import pytest

from controlplane.cli import evaluations
from controlplane.runs.models import Run
from tests.controlplane.banks.repair import repair_version
from tests.controlplane.factories import make_attempt
from tests.runner.evaluation.test_results import line

pytestmark = pytest.mark.django_db


@pytest.fixture
def bank(team, owner, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path / "storage"
    return repair_version(team, owner)


@pytest.fixture
def eval_(assay, monkeypatch):
    from controlplane.cli import commands

    monkeypatch.setattr(evaluations, "connect", lambda: commands.connect())
    return lambda *argv: assay("eval", *argv)


def test_it_is_queued_and_left(eval_, bank):
    code, out, _ = eval_("--agent", "oracle", "--per-family", "1", "--split", "eval", "--no-wait")
    run = Run.objects.get()
    assert code == 0 and out.splitlines()[0] == f"{run.pk}  oracle on repair" and run.total_steps == 1
    config = json.loads(bytes(run.config))
    assert config["selection"]["splits"] == ["eval"] and config["selection"]["per_family"] == 1


def test_a_check_names_the_tasks_and_what_is_wrong(eval_, bank):
    code, out, _ = eval_("--agent", "nop", "--check", "--samples", "2")
    assert code == 0 and out.splitlines() == ["demo/a", "demo/b", "2 tasks, 4 episodes"]
    code, out, _ = eval_("--agent", "nop", "--check", "--family", "none")
    assert code == 1 and "error  /selection: " in out and not Run.objects.exists()


def test_a_model_is_always_named(eval_, bank):
    code, _, err = eval_("--agent", "menu")
    assert code == 1 and "--model is missing" in err
    code, _, err = eval_("--agent", "menu", "--model", "newest")
    assert code == 1 and "checkpoint:ID" in err
    code, _, err = eval_("--agent", "terminal", "--model", "checkpoint:abc")
    assert code == 1 and "model.source.checkpoint" in err and not Run.objects.exists()
    code, _, err = eval_("--agent", "terminal", "--model", "m", "--tokenizer", "/models/m")
    assert code == 1 and "--url" in err


def test_a_served_model_is_sent_messages_or_with_its_tokenizer_tokens(eval_, bank):
    served = ("--agent", "terminal", "--model", "m", "--url", "http://h/v1", "--max-length", "16384", "--max-new-tokens", "1024")
    for more, source in [
        ((), {"type": "served", "name": "m", "url": "http://h/v1"}),
        (("--tokenizer", "/models/m"), {"type": "endpoint", "name": "m", "url": "http://h/v1", "tokenizer": "/models/m"}),
    ]:
        code, _, err = eval_(*served, *more, "--unproven", "only the model is looked at", "--no-wait")
        assert code == 0, err
        run = Run.objects.latest("created_at")
        assert json.loads(bytes(run.config))["model"]["source"] == source and run.model == "m"


def test_the_files_are_written_when_it_has_ended(eval_, bank, tmp_path, monkeypatch):
    def ends(client, run_id, out):
        from controlplane.evals.services import record_evaluation

        run = Run.objects.get(pk=run_id)
        told = {"task": "demo/a", "score": 1.0, "records": [line("demo/a", 1.0)]}
        protocol = {"evaluation": "00000000-0000-4000-8000-000000000001", "label": "oracle", "step": 1, "protocol": {"a": 1}}
        record_evaluation(make_attempt(run), {**protocol, "summary": {}, "results": [told]})
        return {"state": "succeeded"}

    monkeypatch.setattr(evaluations, "follow_run", ends)
    code, out, _ = eval_("--agent", "oracle", "--out", str(tmp_path / "out"))
    assert code == 0 and "repair/sign/2d" in out and "score 1.000  passed 1 of 1  graded 1 of 1" in out
    assert json.loads((tmp_path / "out" / "results.jsonl").read_text())["task_name"] == "demo/a"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["overall"]["mean_score"] == 1.0


def test_an_interrupted_one_says_how_it_goes_on(eval_, bank, monkeypatch, owner):
    monkeypatch.setattr(evaluations, "follow_run", lambda client, run_id, out: {"state": "stopped"})
    code, _, err = eval_("--agent", "nop")
    run = Run.objects.get()
    assert code == 4 and f"assay eval --resume {run.pk}" in err
    Run.objects.update(state="stopped")
    code, _, _ = eval_("--resume", str(run.pk), "--no-wait")
    assert code == 0 and Run.objects.get().state == "queued"


def test_a_group_without_a_score_says_so():
    block = {"mean_score": None, "n_trials": 3}
    assert evaluations.line_of("overall", block).split() == ["overall", "no", "score", "graded", "0", "of", "3"]
    block |= {"mean_score": 0.5, "mean_score_interval": [0.25, 0.75], "n_success": 1, "n_graded": 2}
    assert "score 0.500 [0.250, 0.750]  passed 1 of 2  graded 2 of 3" in evaluations.line_of("overall", block)
