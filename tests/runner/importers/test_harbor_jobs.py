"""Job folders of Harbor: old and new statistics, running jobs, rewards that were never measured; ours read back."""

import json

import pytest

from runner.contract.atif import AgentTurn, Trajectory, write_trajectory
from runner.contract.harbor_jobs import Trial, job_name, read_job, read_trial, trial_name
from runner.contract.termination import Termination
from runner.importers.harbor_jobs import folder_of, main, read_jobs, write_job

GOOD = Trial(
    "t1",
    "demo/heat-repair-sign-l12",
    "heat-repair-sign-l12__a1B2c3D",
    task_path="/bank/heat",
    agent="terminal",
    agent_version="1",
    model="local/m",
    rewards={"reward": 0.75, "reward_repair": 0.615385},
    turns=18,
    input_tokens=210_345,
    output_tokens=5120,
    started=1_700_000_000.0,
    finished=1_700_000_375.0,
    phases={"verifier": (1_700_000_300.0, 1_700_000_341.0)},
)
UNMEASURED = Trial(
    "t2",
    "demo/heat-repair-coef-l40",
    "heat-repair-coef-l40__x",
    agent="terminal",
    model="local/m",
    exception="VerifierTimeoutError",
    turns=4,
)
TIMED_OUT = Trial(
    "t3",
    "demo/heat-repair-norm-l9",
    "heat-repair-norm-l9__y",
    agent="terminal",
    rewards={"reward": 0.0},
    exception="AgentTimeoutError",
    turns=4,
)


@pytest.fixture
def job(tmp_path):
    episode = tmp_path / "episode"
    (episode / "agent").mkdir(parents=True)
    document = write_trajectory(Trajectory("s", "terminal", "1", "m", "p", [AgentTurn("a"), AgentTurn("b")]))
    (episode / "agent" / "trajectory.json").write_text(json.dumps(document))
    (episode / "verifier").mkdir()
    (episode / "verifier" / "test-stdout.txt").write_text("graded")
    (episode / "artifacts" / "logs" / "artifacts" / "source").mkdir(parents=True)
    (episode / "artifacts" / "logs" / "artifacts" / "source" / "heat.f90").write_text("a + b")
    trials = [(GOOD, episode), (UNMEASURED, None), (TIMED_OUT, None)]
    return write_job(tmp_path / "jobs with space", "2026-01-01__00-00-00", "j1", trials, 1_700_000_000.0, 1_700_000_400.0)


def test_what_is_written_is_read_back(job):
    (found,) = read_jobs(job.parent)
    assert not found.notes and (found.counts.total, found.counts.completed, found.counts.errors) == (3, 1, 2)
    trial = found.trials["t1"]
    assert trial.trial == GOOD and len(trial.trajectory.turns) == 2
    assert trial.verifier_output == "graded" and trial.artifacts == ["source/heat.f90"]
    assert folder_of(json.loads((trial.folder / "result.json").read_text())["trial_uri"]) == trial.folder
    assert found.trials["t2"].trial.rewards is None and (found.trials["t2"].folder / "exception.txt").read_text().startswith(
        "VerifierTimeoutError"
    )


def test_a_missing_reward_is_none_and_a_graded_zero_is_zero(job):
    (found,) = read_jobs(job)
    records = {key: trial.record("reward") for key, trial in found.trials.items()}
    assert [records[key]["score"] for key in ("t1", "t2", "t3")] == [0.75, None, 0.0]
    terminations = [Termination.FINISHED, Termination.VERIFIER_TIMEOUT, Termination.AGENT_TIMEOUT]
    assert [records[key]["termination"] for key in ("t1", "t2", "t3")] == terminations
    assert found.trials["t1"].trial.score("reward_repair") == 0.615385


def test_the_statistics_are_in_the_published_form(job):
    document = json.loads((job / "result.json").read_text())
    assert document["n_total_trials"] == 3
    group = document["stats"]["evals"]["terminal__local/m__adhoc"]
    assert (group["n_trials"], group["n_errors"]) == (2, 1) and group["reward_stats"]["reward"] == {"0.75": [GOOD.name]}
    assert group["exception_stats"] == {"VerifierTimeoutError": [UNMEASURED.name]}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"n_total_trials": 4, "stats": {"n_trials": 3, "n_errors": 1, "evals": {}}}, (4, 2, 1)),
        ({"n_total_trials": 4, "stats": {"n_completed_trials": 2, "n_errored_trials": 1, "n_running_trials": 1}}, (4, 2, 1)),
        ({"stats": {}}, (0, 0, 0)),
    ],
)
def test_both_sets_of_statistics_keys_are_read(document, expected):
    counts = read_job(document)
    assert (counts.total, counts.completed, counts.errors) == expected


def test_a_running_job_is_read_again_without_telling_twice(job):
    running = job / "heat-repair-rkorder__z"
    (running / "agent").mkdir(parents=True)
    (running / "result.json").write_text("")
    (job / "result.json").write_text("{")
    (first,) = read_jobs(job)
    assert len(first.trials) == 3 and len(first.notes) == 2 and "heat-repair-rkorder__z" in first.notes[1]
    (running / "result.json").write_text(json.dumps({"id": "t4", "task_name": "demo/x", "verifier_result": {"rewards": {"reward": 1}}}))
    (second,) = read_jobs(job)
    assert set(second.trials) == {"t1", "t2", "t3", "t4"} and second.trials["t4"].trial.rewards == {"reward": 1.0}


def test_rewards_that_are_no_numbers_are_no_rewards():
    document = {"task_name": "demo/x", "verifier_result": {"rewards": {"reward": "high", "passed": True}}}
    assert read_trial(document).rewards is None


def test_the_command_prints_a_line_a_trial(job, capsys):
    assert main([str(job), "--reward-key", "reward_repair"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["id"]: line["score"] for line in lines}["t1"] == 0.615385
    assert main([str(job / "nothing")]) == 1


def test_names_have_the_published_form():
    assert job_name(0.0) == "1970-01-01__00-00-00"
    name = trial_name("demo/" + "heat-repair-" * 5)
    assert len(name) == 32 + 2 + 7 and name.startswith("heat-repair-heat")
