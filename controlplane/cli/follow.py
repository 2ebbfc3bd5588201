"""A run's progress as text: one line that renews itself on a terminal, a line a change elsewhere."""

import time
from typing import TextIO

from controlplane.cli.client import UNREACHABLE, Client, ClientError

POLL_S = 1.0
PATIENCE_S = 120.0
LIVE = ("draft", "queued", "active")
SHOWN = (
    ("reward", "reward"),
    ("forced_choice", "held-out forced choice"),
    ("accuracy", "held-out accuracy"),
    ("length", "response tokens"),
    ("entropy", "entropy"),
)


def follow_run(client: Client, run_id: str, out: TextIO, poll: float = POLL_S) -> dict:
    """Print the run's progress to `out` until it ends; returns the run as it ended."""
    shown, is_terminal = "", out.isatty()
    run, heard = None, time.monotonic()
    while True:
        try:
            run, heard = client.get(f"/runs/{run_id}"), time.monotonic()
            line = progress_line(run)
        except ClientError as error:
            # A web process that restarts is no end of the run.
            if error.code != UNREACHABLE or time.monotonic() - heard > PATIENCE_S:
                raise
            line = "Assay does not answer; waiting for it"
        if line != shown:
            print(f"\r\x1b[2K{line}" if is_terminal else line, end="" if is_terminal else "\n", file=out, flush=True)
            shown = line
        if run and run["state"] not in LIVE:
            print(("\n" if is_terminal else "") + ending(run), file=out, flush=True)
            return run
        time.sleep(poll)


def progress_line(run: dict) -> str:
    """`active  step 12/160  reward 0.41 …  3:20 left`"""
    parts = [run["state"]]
    if run["state"] == "queued" and run.get("waiting"):
        parts.append(run["waiting"])
    if run["step"]:
        parts.append(f"step {run['step']}/{run['total_steps']}")
    parts += [f"{label} {value}" for label, value in values(run)]
    if run.get("contact_lost"):
        parts.append("contact lost")
    if run["state"] == "active" and run.get("eta_s") is not None:
        parts.append(f"{duration(run['eta_s'])} left")
    return "  ".join(parts)


def values(run: dict) -> list[tuple[str, str]]:
    """The newest headline values that the run has, as text. A missing one is left out, never 0."""
    found = []
    for name, label in SHOWN:
        value = run["latest"].get(name)
        value = value.get("value") if isinstance(value, dict) else value
        if value is not None:
            found.append((label, f"{value:.4g}" if isinstance(value, int | float) else str(value)))
    return found


def ending(run: dict) -> str:
    reason = f": {run['reason']}" if run["reason"] else ""
    return f"{run['name']} {run['state'].upper()} at step {run['step']} of {run['total_steps']}{reason}"


def duration(seconds: float) -> str:
    """65 → 1:05; 4000 → 1:06:40"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
