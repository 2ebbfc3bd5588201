"""A house that is hurt on purpose, and looked at from outside: its processes, its database, its folders."""

import functools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import httpx
import psycopg

from controlplane.env import read_environment_file
from controlplane.services import processes
from controlplane.services.processes import Process
from tests.e2e.house import House, command

TRUE_WITHIN_S = 60.0
# Above 1 every limit is that much longer: for a look at the story on a machine that does other things too, never for a figure.
PATIENCE = float(os.environ.get("ASSAY_PATIENCE", "1"))
OPEN = ("granted", "starting", "running", "stopping")
JOURNAL_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (debug|info|warning|error) +([^:]+): (.*)")


def until(condition: Callable, what: str, seconds: float = TRUE_WITHIN_S, every: float = 0.1):
    """The first true value of `condition`; `what` names it when it does not come within `seconds`."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - began < seconds * PATIENCE, f"{what}: not within {seconds * PATIENCE:.0f} s"
        time.sleep(every)
    return value


class ChaosHouse(House):
    """`House` with hands: kill, hold down, start again."""

    # ------------------------------------------------------------ processes
    def services(self) -> dict[str, dict]:
        """The warden's word on each service; empty while nothing serves."""
        try:
            return json.loads((self.home / "house.json").read_text())["services"]
        except (OSError, ValueError):
            return {}

    def service(self, name: str) -> Process | None:
        """The main process of a service, when it lives."""
        entry = self.services().get(name) or {}
        process = Process(entry["pid"], entry["started"]) if entry.get("pid") else None
        return process if process and processes.alive(process) else None

    def actor(self, kind: str) -> Process | None:
        """A living actor of a run: kind is LearnerActor or WorkerActor. Ray writes the name into the process's title."""
        found = processes.descendants(self.process.pid)
        return next((process for process in found if command(process).startswith(f"ray::{kind}")), None)

    def restart(self) -> None:
        """Serve again from the same home, after a death of the front process."""
        self.process.communicate(timeout=60)
        self.start()

    # ------------------------------------------------------------ what it remembers
    @property
    def database(self) -> str:
        return read_environment_file(self.home / "environment")["DATABASE_URL"]

    def rows(self, query: str, *values) -> list[dict]:
        with psycopg.connect(self.database, connect_timeout=5, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(query, values).fetchall()

    def row(self, query: str, *values) -> dict | None:
        """The first row; None also while there is no database to ask."""
        try:
            return next(iter(self.rows(query, *values)), None)
        except psycopg.OperationalError:
            return None

    def attempts(self, run: str) -> list[dict]:
        columns = "id, number, state, reason, phase, first_step, resumed_from_id, created_at, running_at, ended_at, components, exit_record"
        counters = "points_accepted, points_repeated, points_conflicting, writes_fenced, contact_lost_at"
        return self.rows(f"SELECT {columns}, {counters} FROM runs_attempt WHERE run_id = %s ORDER BY number", run)

    def state(self, run: str) -> str | None:
        row = self.row("SELECT state FROM runs_run WHERE id = %s", run)
        return row and row["state"]

    def step(self, run: str) -> int:
        """The newest step that arrived; 0 while there is none to read."""
        row = self.row("SELECT step FROM runs_run WHERE id = %s", run)
        return row["step"] if row else 0

    def ticked_since(self, moment: float) -> bool:
        """Whether the reconciler finished a round that began after `moment` (Unix seconds)."""
        row = self.row("SELECT extract(epoch FROM at) - seconds AS began FROM cluster_reconcilertick")
        return bool(row and float(row["began"]) > moment)

    def web_answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    # ------------------------------------------------------------ what lies on its disk
    def run_folder(self, run: str) -> Path:
        return self.home / "storage" / "runs" / run

    def attempt_folder(self, run: str) -> Path:
        """The folder of the newest attempt."""
        return self.run_folder(run) / "attempts" / str(self.attempts(run)[-1]["number"])

    def journal(self, run: str, number: int) -> list[tuple[str, str, str]]:
        """(level, component, first line) of every line that the driver of an attempt wrote down after its `emit` had returned."""
        path = self.run_folder(run) / "attempts" / str(number) / "driver.log"
        text = path.read_text() if path.exists() else ""
        return [match.groups() for line in text.splitlines() if (match := JOURNAL_LINE.match(line))]

    def spools(self, run: str) -> list[Path]:
        """Spools that still hold records."""
        return [path for path in self.run_folder(run).glob("attempts/*/spool/*") if path.is_dir()]

    # ------------------------------------------------------------ people
    def launch(self, document: dict) -> str:
        return json.loads(self.rest("/runs", self.token(), document))["id"]

    def stop(self, run: str) -> None:
        self.rest(f"/runs/{run}/stop", self.token(), {})

    @functools.cached_property
    def cookies(self) -> dict[str, str]:
        """A signed-in session, from the one-time link."""
        with httpx.Client(base_url=self.url, trust_env=False, follow_redirects=True, timeout=30.0) as client:
            client.get(self.login)
            headers = {"Referer": self.login, "X-CSRFToken": client.cookies["csrftoken"]}
            assert client.post(self.login, headers=headers).is_success
            return dict(client.cookies)


def kill(process: Process | None, what: str) -> float:
    """kill -9; returns the moment (Unix seconds)."""
    assert process, f"{what} does not run"
    processes.send(process, signal.SIGKILL)
    return time.time()


def hold_down(house: ChaosHouse, service: str, seconds: float) -> float:
    """Kill a service whenever it appears, for `seconds`; returns the moment at which it was let go."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process := house.service(service):
            processes.send(process, signal.SIGKILL)
        time.sleep(0.05)
    return time.time()


# ---------------------------------------------------------------- the ledger
def missing_and_doubled(house: ChaosHouse, run: str) -> tuple[list, list]:
    """What the drivers wrote down and the control plane does not have, and what it has twice.

    A line is in a driver's own journal only after `emit` had spooled it, so each must have arrived, once. The line of a step is written
    after its points, so that each such step must have its point.
    """
    missing: list = []
    for number in range(1, len(house.attempts(run)) + 1):
        told = Counter(house.journal(run, number))
        missing += [(number, *line) for line in (told - arrived_lines(house, run, number))]
        steps = {int(found.group(1)) for line in told if (found := re.match(r"step (\d+) · ", line[2]))}
        missing += [(number, "step", step) for step in sorted(steps - arrived_steps(house, run, number))]
    same = "attempt, t, component, level, message"
    doubled = house.rows(f"SELECT {same}, count(*) FROM telemetry_logline WHERE run_id = %s GROUP BY {same} HAVING count(*) > 1", run)
    return missing, doubled


def arrived_lines(house: ChaosHouse, run: str, number: int) -> Counter:
    rows = house.rows("SELECT level, component, message FROM telemetry_logline WHERE run_id = %s AND attempt = %s", run, number)
    return Counter((row["level"], row["component"], (row["message"].splitlines() or [""])[0]) for row in rows)


def arrived_steps(house: ChaosHouse, run: str, number: int) -> set[int]:
    query = """SELECT step FROM telemetry_point WHERE attempt = %s AND series_id IN
               (SELECT id FROM telemetry_series WHERE run_id = %s AND name = 'timing_s/step' AND axis = 'step')"""
    return {row["step"] for row in house.rows(query, number, run)}


def visible_steps(house: ChaosHouse, run: str) -> list[int]:
    """The steps a reader of the run sees, over all of its attempts."""
    found: set[int] = set()
    begun = [attempt for attempt in house.attempts(run) if attempt["first_step"] is not None]
    for attempt, after in zip_longest(begun, begun[1:]):
        stop = after["first_step"] if after else 2**62
        found |= {step for step in arrived_steps(house, run, attempt["number"]) if attempt["first_step"] <= step < stop}
    return sorted(found)


def wrong_resumes(house: ChaosHouse, run: str) -> list[str]:
    """Attempts that did not begin behind the newest checkpoint that was complete when they were granted."""
    wrong = []
    checkpoints = house.rows(
        "SELECT id, step, completed_at FROM checkpoints_checkpoint WHERE run_id = %s AND completed_at IS NOT NULL", run
    )
    for attempt in house.attempts(run)[1:]:
        complete = [row for row in checkpoints if row["completed_at"] < attempt["created_at"]]
        newest = max(complete, key=lambda row: row["step"], default=None)
        if attempt["resumed_from_id"] != (newest and newest["id"]):
            wrong.append(f"attempt {attempt['number']} resumed from {attempt['resumed_from_id']}, the newest was {newest}")
        elif attempt["first_step"] not in (None, (newest["step"] if newest else 0) + 1):
            wrong.append(f"attempt {attempt['number']} began with step {attempt['first_step']} behind {newest}")
    return wrong


def held_slots(house: ChaosHouse, run: str) -> list[dict]:
    """Grants of the run that are neither given back nor quarantined with a reason."""
    query = """SELECT g.state, g.reason FROM cluster_grant g JOIN runs_attempt a ON a.id = g.attempt_id
               WHERE a.run_id = %s AND NOT (g.state = 'released' OR (g.state = 'quarantined' AND g.reason <> ''))"""
    return house.rows(query, run)
