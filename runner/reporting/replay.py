"""Delivers what dead emitters left in the spool of an attempt, under their own emitter names and sequence numbers."""

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from runner.reporting.courier import Courier, DeliveryClosed
from runner.reporting.spool import SpoolBusy, hold, seal_abandoned

CONNECTION = "connection.json"


@dataclass(frozen=True)
class Connection:
    """Where an attempt's batches go, and its token."""

    url: str
    token: str

    @property
    def tasks_url(self) -> str:
        """Where task files are fetched from, by digest."""
        return f"{self.url.removesuffix('/batches')}/tasks"


@dataclass
class Replayed:
    """`delivered` batches went out; `left` spools still hold some; `busy` spools belong to living emitters."""

    delivered: int = 0
    left: int = 0
    busy: int = 0


def write_connection(attempt: Path, url: str, token: str) -> None:
    """Remember where this attempt's batches go, so that a successor can deliver them; readable by the owner alone."""
    attempt.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(attempt / CONNECTION, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "token": token}, file)


def read_connection(attempt: Path) -> Connection | None:
    """The connection of the attempt folder `attempt`; None where it has no control plane."""
    try:
        return Connection(**json.loads((attempt / CONNECTION).read_text()))
    except FileNotFoundError:
        return None


def replay(attempt: Path, stop: threading.Event | None = None, timeout: float = float("inf")) -> Replayed:
    """Deliver every abandoned spool of the attempt folder `attempt`. Raises FileNotFoundError when it never had a connection."""
    connection = json.loads((attempt / CONNECTION).read_text())
    result, deadline = Replayed(), time.monotonic() + timeout
    for folder in sorted(path for path in (attempt / "spool").glob("*") if path.is_dir()):
        try:
            lock = hold(folder)
        except SpoolBusy:
            result.busy += 1
            continue
        try:
            _replay_spool(folder, connection, stop or threading.Event(), deadline, result)
        finally:
            os.close(lock)
    if not result.left and not result.busy:
        (attempt / CONNECTION).unlink(missing_ok=True)
    return result


def _replay_spool(folder: Path, connection: dict, stop: threading.Event, deadline: float, result: Replayed) -> None:
    seal_abandoned(folder)
    courier = Courier(folder, connection["url"], connection["token"], stop)
    courier.deadline = deadline
    try:
        finished = courier.run()
    except DeliveryClosed as closed:
        print(f"{folder.name}: {closed}", file=sys.stderr)
        finished = False
    finally:
        courier.close()
    result.delivered += courier.delivered
    if not finished:
        result.left += 1
    elif not any(folder.glob("refused-*")):
        shutil.rmtree(folder)


def replay_earlier_attempts(attempts: Path, own: Path, stop: threading.Event) -> None:
    """Replay the sibling attempts of `own`; runs in a thread beside training and says what it did not manage on stderr."""
    for attempt in sorted(path for path in attempts.glob("*") if path != own and (path / CONNECTION).exists()):
        try:
            replay(attempt, stop)
        except (OSError, ValueError) as error:
            print(f"{attempt}: its spool could not be replayed: {error}", file=sys.stderr)
