"""Evaluations in containers as they are read: records, summary with intervals, comparisons of several under one protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from controlplane.evals import statistics
from controlplane.evals.models import Evaluation, Result
from controlplane.evals.selectors import Comparison, paired_with_each
from controlplane.runs.models import Run
from runner.contract.evaluation_config import ANCHORS, KIND, REGRADE, WARMING
from runner.contract.evaluation_results import Record, summarise

SHOWN, COMPARED = 200, 10


def evaluation_runs(user) -> QuerySet[Run]:
    """Runs that evaluate, newest first; proofs and warmings are their banks' business, regrades their episodes'."""
    runs = Run.objects.for_user(user).filter(kind=KIND).exclude(method__in=(ANCHORS, REGRADE, WARMING))
    return runs.select_related("bank_version__bank", "owner", "project").defer("document").order_by("-created_at", "-id")


def records_of(evaluation: Evaluation) -> list[Record]:
    """The lines of results.jsonl, by task and sample."""
    rows = Result.objects.filter(evaluation=evaluation).order_by("task").values_list("records", flat=True)
    return [record for records in rows for record in records]


def intervals(records: Sequence[Record]) -> dict[str, Any]:
    """95 % intervals of a block: bootstrap over tasks of the mean score, Wilson's of the pass rate. None where nothing was graded, and for the
    mean of a single task, which says nothing of others.

    Samples of one task are one draw: they are averaged first. With several samples the pass rate is bootstrapped over tasks, too.
    """
    by_task: dict[str, list[Record]] = {}
    for record in records:
        if record["score"] is not None:
            by_task.setdefault(record["task_name"], []).append(record)
    scores = [sum(record["score"] for record in rows) / len(rows) for rows in by_task.values()]
    passes = [sum(record["success"] for record in rows) / len(rows) for rows in by_task.values()]
    once = all(len(rows) == 1 for rows in by_task.values())
    passing = statistics.wilson(round(sum(passes)), len(passes)) if once else statistics.bootstrap_mean(passes)
    score = _ends(statistics.bootstrap_mean(scores)) if len(scores) > 1 else None
    return {"mean_score_interval": score, "pass_rate_interval": _ends(passing)}


def _ends(interval: statistics.Interval) -> list[float] | None:
    return None if interval.low is None else [interval.low, interval.high]


def summary_of(evaluation: Evaluation, records: Sequence[Record] | None = None) -> dict[str, Any]:
    """summary.json in the published layout, with intervals."""
    found = records_of(evaluation) if records is None else records
    return summarise(found, evaluation.summary.get("config", {}), intervals)


def with_results(runs: list[Run]) -> list[Run]:
    """Attach to each its evaluation as `result` (None while it has none), with `overall` of its summary and `interval` of its mean score."""
    found = {one.run_id: one for one in Evaluation.objects.filter(run__in=runs).select_related("protocol").order_by("created_at")}
    scores: dict[Any, list[float]] = {one.pk: [] for one in found.values()}
    for id, score in Result.objects.filter(evaluation__in=scores, score__isnull=False).order_by("task").values_list("evaluation", "score"):
        scores[id].append(score)
    for run in runs:
        run.result = found.get(run.pk)
        if run.result:
            run.result.overall = run.result.summary.get("overall", {})
            run.result.interval = statistics.bootstrap_mean(scores[run.result.pk])
    return runs


@dataclass(frozen=True)
class Standing:
    """Another evaluation of the same protocol, set against the one that is looked at; `sentence` says what the difference is worth."""

    comparison: Comparison
    sentence: str


def standing(user, evaluation: Evaluation) -> list[Standing]:
    """The newest evaluations of the same protocol, each minus this one, task by task, corrected for how many there are."""
    runs = evaluation_runs(user)
    others = Evaluation.objects.filter(protocol=evaluation.protocol_id, run__in=runs.values("pk")).exclude(pk=evaluation.pk)
    found = list(others.select_related("protocol", "run").order_by("-created_at")[:COMPARED])
    compared = paired_with_each(evaluation, found, "score") if found else []
    return [Standing(one, statistics.sentence("Mean score", one.difference, one.p_holm)) for one in compared]
