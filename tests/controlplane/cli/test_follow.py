"""A run's progress as text."""

import io

import pytest

from controlplane.cli import follow
from controlplane.cli.client import UNREACHABLE, ClientError
from controlplane.cli.follow import duration, follow_run, progress_line

RUN = {
    "name": "first",
    "state": "queued",
    "reason": "",
    "waiting": "",
    "step": 0,
    "total_steps": 10,
    "latest": {},
    "contact_lost": False,
    "eta_s": None,
}


class Server:
    """Answers one run after the other; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get(self, path):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {**RUN, **answer}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_change_is_a_line_and_the_end_a_sentence():
    out = io.StringIO()
    server = Server(
        {"waiting": "2 CPUs are taken by `second`"},
        {"waiting": "2 CPUs are taken by `second`"},
        {"state": "active", "step": 3, "latest": {"reward": {"value": 0.5, "step": 3, "attempt": 1}}, "eta_s": 65},
        {"state": "failed", "step": 4, "reason": "out of memory"},
    )
    assert follow_run(server, "id", out, poll=0)["state"] == "failed"
    assert out.getvalue().splitlines() == [
        "queued  2 CPUs are taken by `second`",
        "active  step 3/10  reward 0.5  1:05 left",
        "failed  step 4/10",
        "first FAILED at step 4 of 10: out of memory",
    ]


def test_a_terminal_renews_one_line():
    out = Terminal()
    follow_run(Server({"state": "active", "step": 1}, {"state": "succeeded", "step": 10}), "id", out, poll=0)
    assert out.getvalue().count("\r\x1b[2K") == 2
    assert out.getvalue().endswith("\nfirst SUCCEEDED at step 10 of 10\n")


def test_a_restarting_server_does_not_end_it():
    out = io.StringIO()
    gone = ClientError("does not answer", code=UNREACHABLE)
    run = follow_run(Server({"state": "active", "step": 1}, gone, gone, {"state": "succeeded", "step": 10}), "id", out, poll=0)
    assert run["state"] == "succeeded"
    assert out.getvalue().count("waiting for it") == 1


def test_a_server_that_stays_away_does(monkeypatch):
    monkeypatch.setattr(follow, "PATIENCE_S", -1)
    with pytest.raises(ClientError):
        follow_run(Server({"state": "active"}, ClientError("gone", code=UNREACHABLE)), "id", io.StringIO(), poll=0)


def test_a_refusal_ends_it_at_once():
    with pytest.raises(ClientError, match="no such object"):
        follow_run(Server(ClientError("no such object")), "id", io.StringIO(), poll=0)


def test_a_missing_value_is_left_out_and_a_broken_one_shown():
    assert (
        progress_line({**RUN, "state": "active", "step": 1, "latest": {"accuracy": {"value": "NaN"}}})
        == "active  step 1/10  held-out accuracy NaN"
    )


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (65, "1:05"), (4000, "1:06:40")])
def test_durations(seconds, text):
    assert duration(seconds) == text
