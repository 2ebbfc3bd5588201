"""Retention over whole random histories, with rows and files: what something still needs is there after every pass."""

import math
import os
import uuid
from pathlib import Path

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.retention import MIN_DELTA
from controlplane.checkpoints.selectors import resume_point
from controlplane.checkpoints.services import Report, apply_retention, record_report, set_pinned
from controlplane.runs.models import Attempt, Run
from runner.contract.metrics import TRACKED as FORMS
from runner.contract.metrics import lookup
from tests.controlplane.factories import make_attempt, make_run

pytestmark = pytest.mark.django_db

TRACKED = [name.replace("{reason}", "Biology") for name in FORMS]
_SEARCH = os.environ.get("ASSAY_EXAMPLES")
VALUES = st.one_of(st.floats(-1, 1), st.just(math.nan), st.just(math.inf))
WHICH = st.integers(0, 30)
ACTS = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(st.sampled_from(TRACKED), VALUES, max_size=2)),
    st.tuples(st.just("pin"), WHICH),
    st.tuples(st.just("unpin"), WHICH),
    st.tuples(st.just("new attempt"), WHICH),
    st.tuples(st.just("train another run"), WHICH),
    st.tuples(st.just("archive the others"), st.none()),
)


class History:
    """A run whose past is made up act by act; the slow reference of what must stay is read from the rows alone."""

    def __init__(self, team, owner, run, attempt, write):
        self.team, self.owner, self.run, self.attempt, self.write = team, owner, run, attempt, write
        self.step, self.begins = 0, {}

    @property
    def complete(self) -> list[Checkpoint]:
        return list(Checkpoint.objects.filter(run=self.run, state="complete").order_by("completed_at"))

    def act(self, what: str, argument) -> None:
        rows = self.complete
        if what == "write":
            self.step += 1
            folder, manifest = self.write(self.step)
            metrics = {name: value for name, value in argument.items() if math.isfinite(value)}
            report = Report("complete", 0, self.step, str(folder), self.step, manifest, metrics)
            record_report(self.attempt, uuid.uuid4(), report)
        elif what == "archive the others":
            Run.objects.exclude(pk=self.run.pk).update(archived_at=timezone.now())
        elif rows:
            self.act_on(what, rows[argument % len(rows)])

    def act_on(self, what: str, row: Checkpoint) -> None:
        if what in ("pin", "unpin"):
            set_pinned(self.owner, row, what == "pin")
        elif what == "new attempt":
            Attempt.objects.filter(pk=self.attempt.pk).update(state="lost")
            self.attempt = make_attempt(self.run, self.attempt.number + 1, resumed_from=row)
        else:
            make_run(self.team, document={"model": {"source": {"type": "checkpoint", "checkpoint": str(row.pk)}}})

    def must_stay(self) -> set:
        rows = self.complete
        needed = {row.pk for row in rows[-2:]} | {row.pk for row in rows if row.pinned_at}
        for name in TRACKED:
            scored = [row for row in rows if name in row.metrics]
            if scored:
                sign = -1 if lookup(name).good == "down" else 1
                best = scored[0]
                for row in scored[1:]:
                    best = row if sign * (row.metrics[name] - best.metrics[name]) > MIN_DELTA else best
                needed.add(best.pk)
        others = Run.objects.exclude(pk=self.run.pk).filter(archived_at=None)
        trained = {uuid.UUID(other.document["model"]["source"]["checkpoint"]) for other in others}
        begun = set(Attempt.objects.filter(run=self.run, state="running").values_list("resumed_from", flat=True))
        return needed | ((trained | begun) & {row.pk for row in rows})


@settings(
    max_examples=int(_SEARCH or 25),
    derandomize=not _SEARCH,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ACTS, min_size=4, max_size=14))
def test_what_is_needed_outlives_every_pass(team, owner, run, attempt, write, acts):
    with transaction.atomic():
        history = History(team, owner, run, attempt, write)
        for what, argument in acts:
            history.act(what, argument)
            needed, before = history.must_stay(), resume_point(run)
            apply_retention(run.pk)
            left = {row.pk: Path(row.path) for row in history.complete}
            assert needed <= set(left), "a checkpoint that something needs was deleted"
            assert all((path / "manifest.json").exists() for path in left.values()), "a complete one has lost its files"
            assert resume_point(run) == before, "the run would go on from elsewhere"
        gone = Checkpoint.objects.filter(run=run, state="deleted")
        assert not [row for row in gone if Path(row.path).exists()], "a deleted one still takes room"
        transaction.set_rollback(True)
