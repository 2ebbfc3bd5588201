"""How long runs like this one took: what passes outside of their steps, and what a step of each stage takes.

A warm start's step may be ten times as short as a step of reinforcement learning, and starting, evaluating and saving take their time
however few the steps are; a mean over whole runs would tell a short run far too little.
"""

from dataclasses import dataclass

from django.db import connection
from django.db.models import F, Sum

from controlplane.runs.selectors import resolved_document
from runner.contract.run_config import RunConfig
from runner.contract.states import RunState

EARLIER_RUNS = 5
STEP_TIME = "timing_s/step"

_STEP_TIMES = """
    SELECT asked.run, asked.stage, avg(point.value), sum(point.value)
    FROM unnest(%s::uuid[], %s::int[], %s::bigint[], %s::bigint[]) AS asked (run, stage, first, last)
    JOIN telemetry_series AS series ON series.run_id = asked.run AND series.name = %s AND series.axis = 'step'
    JOIN telemetry_point AS point ON point.series_id = series.id AND point.step BETWEEN asked.first AND asked.last
    GROUP BY asked.run, asked.stage
"""


@dataclass(frozen=True)
class Stage:
    """`steps` optimizer steps of `step_seconds` each."""

    type: str
    steps: int
    step_seconds: float


@dataclass(frozen=True)
class Pace:
    """One run's time in seconds; `around` passes while no step is made: starting, evaluating, saving."""

    around: float
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        return self.around + sum(stage.steps * stage.step_seconds for stage in self.stages)


def expected(config: RunConfig, alike) -> list[Pace]:
    """What `config` would take at the pace of each of the newest runs among `alike`, shortest first.

    `alike`: runs with the same stages in the same order. A step is taken to last in proportion to its batch.
    """
    done = alike.filter(state=RunState.SUCCEEDED, attempts__ended_at__isnull=False)
    runs = list(done.annotate(seconds=Sum(F("attempts__ended_at") - F("attempts__created_at"))).order_by("-ended_at")[:EARLIER_RUNS])
    documents = {run.pk: resolved_document(run)["stages"] for run in runs}
    times = _step_times(documents)
    known = [run for run in runs if len(times.get(run.pk, ())) == len(documents[run.pk])]
    paces = [_at_the_pace_of(run.seconds.total_seconds(), times[run.pk], documents[run.pk], config) for run in known]
    return sorted(paces, key=lambda pace: pace.seconds)


def _step_times(documents: dict) -> dict:
    """Run → stage → (mean, sum) of the seconds of its steps, over all attempts."""
    asked = [(run, stage, *span) for run, stages in documents.items() for stage, span in enumerate(_spans(stages))]
    found: dict = {}
    with connection.cursor() as cursor:
        cursor.execute(_STEP_TIMES, [*([list(column) for column in zip(*asked, strict=True)] or [[], [], [], []]), STEP_TIME])
        for run, stage, mean, total in cursor.fetchall():
            found.setdefault(run, {})[stage] = (mean, total)
    return found


def _spans(stages: list[dict]) -> list[tuple[int, int]]:
    """The first and the last step of each stage; steps count from 1 over all of them."""
    ends = [sum(stage["steps"] for stage in stages[: index + 1]) for index in range(len(stages))]
    return [(end - stage["steps"] + 1, end) for stage, end in zip(stages, ends, strict=True)]


def _at_the_pace_of(seconds: float, times: dict, stages: list[dict], config: RunConfig) -> Pace:
    around = max(seconds - sum(total for _, total in times.values()), 0.0)
    wanted = [
        Stage(stage.type, stage.steps, times[index][0] * stage.batch_size / stages[index]["batch_size"])
        for index, stage in enumerate(config.stages)
    ]
    return Pace(around, tuple(wanted))
