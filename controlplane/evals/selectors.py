"""Reading evaluations: rates with intervals, comparisons under one protocol, the leaderboard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum

from controlplane.evals import statistics
from controlplane.evals.models import Evaluation, Protocol, Result
from controlplane.evals.statistics import Difference, Interval
from controlplane.runs.models import Run
from runner.contract.metrics import MIN_EFFECTIVE

COLUMNS = {"score": "Generated accuracy", "forced": "Forced-choice accuracy"}
"""What can be compared, and its name in sentences."""


class ProtocolsDiffer(ValueError):
    """Two evaluations were made differently: no number may compare them. The message names what differs."""


@dataclass(frozen=True)
class Rate:
    """A mean over the `n` tasks that have a value, of `tasks` in all; `k` is their sum, an exact count for 0/1 values."""

    k: float
    n: int
    tasks: int
    rate: float | None
    low: float | None
    high: float | None

    @property
    def incomplete(self) -> bool:
        """Whether too few of the tasks have a value for any checkpoint to be the best by it."""
        return self.n < MIN_EFFECTIVE * self.tasks


@dataclass(frozen=True)
class DomainRates:
    """The rates of one domain of the held-out tasks."""

    domain: str
    generated: Rate
    forced: Rate


def evaluations_of(runs: Iterable[Run]) -> QuerySet[Evaluation]:
    return Evaluation.objects.filter(run__in=runs).select_related("protocol", "checkpoint").order_by("step", "created_at", "id")


def for_run(run: Run) -> list[Evaluation]:
    """The run's evaluations, oldest first, with rates: `generated`, `forced`, `parsed` (Rate) and `domains` (DomainRates)."""
    return with_rates(list(evaluations_of([run])))


def with_rates(evaluations: list[Evaluation]) -> list[Evaluation]:
    """Attach the rates, in a number of queries that does not depend on how many evaluations there are."""
    counted = {(row["evaluation"], row["domain"]): row for row in _counted(evaluations)}
    fractional = _fractional(evaluations, counted.values())
    for evaluation in evaluations:
        rows = {domain: row for (id, domain), row in sorted(counted.items(), key=lambda item: item[0][1]) if id == evaluation.pk}
        for name, column in (("generated", "score"), ("forced", "forced"), ("parsed", "parsed")):
            setattr(evaluation, name, _rate(rows.values(), column, fractional.get((evaluation.pk, column))))
        evaluation.domains = [
            DomainRates(domain, *(_domain_rate(row, column, fractional) for column in COLUMNS)) for domain, row in rows.items()
        ]
    return evaluations


def _counted(evaluations: list[Evaluation]) -> QuerySet:
    return (
        Result.objects.filter(evaluation__in=evaluations)
        .values("evaluation", "domain")
        .order_by()
        .annotate(
            tasks=Count("id"),
            score_n=Count("score"),
            score_k=Sum("score"),
            score_fractions=Count("id", filter=~Q(score__in=(0, 1)) & Q(score__isnull=False)),
            forced_n=Count("forced"),
            forced_k=Sum("forced"),
            forced_fractions=Count("id", filter=~Q(forced__in=(0, 1)) & Q(forced__isnull=False)),
            parsed_n=Count("parsed"),
            parsed_k=Count("id", filter=Q(parsed=True)),
        )
    )


def _fractional(evaluations: list[Evaluation], rows: Iterable[dict]) -> dict[tuple, list[tuple[str, float]]]:
    """(domain, value) pairs of the columns that hold more than 0 and 1: Wilson's interval is not for them."""
    wanted = {(row["evaluation"], column) for row in rows for column in COLUMNS if row[f"{column}_fractions"]}
    if not wanted:
        return {}
    found: dict[tuple, list] = {key: [] for key in wanted}
    results = Result.objects.filter(evaluation__in={id for id, _ in wanted}).order_by("task").values_list("evaluation", "domain", *COLUMNS)
    for id, domain, *values in results:
        for column, value in zip(COLUMNS, values, strict=True):
            if value is not None and (id, column) in wanted:
                found[id, column].append((domain, value))
    return found


def _domain_rate(row: dict, column: str, fractional: dict[tuple, list[tuple[str, float]]]) -> Rate:
    values = fractional.get((row["evaluation"], column), ())
    return _rate([row], column, [pair for pair in values if pair[0] == row["domain"]])


def _rate(rows: Iterable[dict], column: str, values: list[tuple[str, float]] | None) -> Rate:
    rows = list(rows)
    n, k = sum(row[f"{column}_n"] for row in rows), sum(row[f"{column}_k"] or 0 for row in rows)
    interval = statistics.bootstrap_mean([value for _, value in values]) if values else statistics.wilson(round(k), n)
    return Rate(k, n, sum(row["tasks"] for row in rows), interval.estimate, interval.low, interval.high)


# ---------------------------------------------------------------- comparing
@dataclass(frozen=True)
class Comparison:
    """Two evaluations under one protocol, in numbers and in a sentence."""

    before: Evaluation
    after: Evaluation
    column: str
    difference: Difference
    sentence: str
    p_holm: float | None = None

    @property
    def n(self) -> int:
        return self.difference.interval.n

    @property
    def low(self) -> float | None:
        return self.difference.interval.low

    @property
    def high(self) -> float | None:
        return self.difference.interval.high

    @property
    def resolved(self) -> bool:
        return self.difference.resolved and (self.p_holm is None or self.p_holm < 0.05)


def require_same_protocol(one: Evaluation, other: Evaluation) -> None:
    """Raise ProtocolsDiffer, naming the keys, unless both were made the same way."""
    if one.protocol_id == other.protocol_id:
        return
    first, second = one.protocol.document, other.protocol.document
    keys = sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
    told = "; ".join(f"{key}: {first.get(key)!r:.60} and {second.get(key)!r:.60}" for key in keys)
    raise ProtocolsDiffer(f"These evaluations are not comparable, their protocols differ in {told}. Evaluate both under one protocol.")


def paired(before: Evaluation, after: Evaluation, column: str = "forced") -> Comparison:
    """After minus before, task by task. Raises ProtocolsDiffer."""
    require_same_protocol(before, after)
    difference = statistics.paired_difference(values_of(before, column), values_of(after, column))
    return Comparison(before, after, column, difference, statistics.sentence(COLUMNS[column], difference))


def paired_with_each(baseline: Evaluation, others: Sequence[Evaluation], column: str = "forced") -> list[Comparison]:
    """Each of `others` against one baseline, corrected by Holm for how many there are. Raises ProtocolsDiffer."""
    with_values([baseline, *others])
    found = [paired(baseline, other, column) for other in others]
    adjusted = statistics.holm([comparison.difference.p if comparison.difference.p is not None else 1.0 for comparison in found])
    return [
        Comparison(baseline, one.after, column, one.difference, statistics.sentence(COLUMNS[column], one.difference, p), p)
        for one, p in zip(found, adjusted, strict=True)
    ]


def pooled(pairs: Sequence[tuple[Evaluation, Evaluation]], column: str = "forced") -> Interval:
    """Mean change over several (before, after) pairs, one a seed, with seeds and tasks both resampled. Raises ProtocolsDiffer."""
    changes = []
    for before, after in pairs:
        require_same_protocol(pairs[0][0], before)
        require_same_protocol(before, after)
        first, second = values_of(before, column), values_of(after, column)
        both = [task for task in first.keys() & second.keys() if first[task] is not None and second[task] is not None]
        changes.append({task: second[task] - first[task] for task in both})
    return statistics.pooled_difference(changes)


def values_of(evaluation: Evaluation, column: str) -> dict[str, float | None]:
    """Task to value; None where the task has none."""
    if column not in COLUMNS:
        raise ValueError(f"column: {column!r} is none of {', '.join(COLUMNS)}")
    if hasattr(evaluation, "values"):
        return evaluation.values[column]
    return dict(Result.objects.filter(evaluation=evaluation).values_list("task", column))


def with_values(evaluations: Sequence[Evaluation]) -> None:
    """Attach `values`, for each column its task to value, to those that have none yet, in one query for all."""
    wanted = {evaluation.pk: evaluation for evaluation in evaluations if not hasattr(evaluation, "values")}
    for evaluation in wanted.values():
        evaluation.values = {column: {} for column in COLUMNS}
    if not wanted:
        return
    for id, task, *values in Result.objects.filter(evaluation__in=wanted).values_list("evaluation", "task", *COLUMNS):
        for column, value in zip(COLUMNS, values, strict=True):
            wanted[id].values[column][task] = value


# ---------------------------------------------------------------- several runs
def last_by_protocol(runs: Sequence[Run]) -> dict[UUID, Evaluation]:
    """The last evaluation of each run under the one protocol that most of the runs share, with rates; runs without one are left out."""
    last: dict[str, dict[UUID, Evaluation]] = {}
    for evaluation in evaluations_of(runs):
        last.setdefault(evaluation.protocol.hash, {})[evaluation.run_id] = evaluation
    if not last:
        return {}
    shared = max(last.values(), key=lambda found: (len(found), max(evaluation.created_at for evaluation in found.values())))
    with_rates(list(shared.values()))
    return shared


@dataclass(frozen=True)
class Leaderboard:
    """Runs under one protocol, best first; `verdict` says whether the gap at the top is resolved."""

    protocol: Protocol
    rows: list[Evaluation]
    verdict: str


def protocols(runs: QuerySet[Run]) -> QuerySet[Protocol]:
    """Protocols under which any of `runs` was evaluated, with how many `.runs`, newest first."""
    return (
        Protocol.objects.filter(evaluation__run__in=runs)
        .annotate(runs=Count("evaluation__run", distinct=True))
        .order_by("-created_at", "-id")
    )


def leaderboard(runs: QuerySet[Run], protocol: Protocol, column: str = "forced") -> Leaderboard:
    """Each run's last evaluation under `protocol`. A run without a value of that column ranks last."""
    found = evaluations_of(runs).filter(protocol=protocol).select_related("run", "protocol", "checkpoint")
    last = {evaluation.run_id: evaluation for evaluation in found}
    rows = with_rates(list(last.values()))
    rates = {row.pk: (row.generated if column == "score" else row.forced).rate for row in rows}
    rows.sort(key=lambda row: (rates[row.pk] is None, -(rates[row.pk] or 0.0), row.run.name, str(row.pk)))
    return Leaderboard(protocol, rows, _verdict(rows, column))


def _verdict(rows: list[Evaluation], column: str) -> str:
    if len(rows) < 2:
        return "There is nothing to compare with yet."
    gap = paired(rows[1], rows[0], column)
    return f"{rows[0].run.name} against {rows[1].run.name}: {gap.sentence}"
