"""Runs that differ only in luck: the recipe they share, and what their seeds add up to."""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from os.path import commonprefix
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Avg, Count, F, FloatField, Max, Min, Q, StdDev
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast

from controlplane.evals.statistics import Interval, t_mean
from controlplane.runs.listing import PAGE, RunFilters
from controlplane.runs.models import Run
from runner.contract.canonical import canonical_bytes, digest

NOT_RECIPE = ("name", "project", "experiment", "tags", "preset", "seed", "priority", "max_attempts")
"""What a document says beside what is trained: two runs that differ only here answer the same question."""

MEASURED = ("reward", "forced_choice", "accuracy", "length", "verifier_error")
STATES = ("active", "queued", "succeeded", "failed", "stopped", "lost", "draft")
SORTS = {"created": "newest", "reward": "reward_mean"}
_LUCK = re.compile(r"[\s,;:_\-–#/(]*\b(?:seed|s|run)?[\s=:_#-]*$", re.IGNORECASE)
_LARGEST = 1e300


def recipe_of(document: dict[str, Any]) -> str:
    """SHA-256 of the resolved document without NOT_RECIPE."""
    return digest(canonical_bytes({key: value for key, value in document.items() if key not in NOT_RECIPE}))


def recipe_of_bytes(config: bytes) -> str:
    return recipe_of(json.loads(config))


@dataclass(frozen=True)
class SeedGroup:
    """The runs of one recipe. `measured` holds, for each of MEASURED, the mean over the runs that have a value, with n and t interval."""

    recipe: str
    name: str
    newest: Run
    runs: int
    seeds: list[int]
    ids: list[str]
    states: list[tuple[str, int]]
    steps: tuple[int, int]
    measured: dict[str, Interval]
    created_at: datetime

    @property
    def uneven(self) -> bool:
        """Whether the means mix runs that got to different steps."""
        return self.steps[0] != self.steps[1]


def groups(user, filters: RunFilters, offset: int = 0, limit: int = PAGE) -> tuple[list[SeedGroup], bool]:
    """`limit` recipes of the runs that the filters keep, and whether there are more. Newest first, or by mean reward with the missing last."""
    rows = list(_ordered(_aggregated(user, filters), filters.sort)[offset : offset + limit + 1])
    shown = rows[:limit]
    newest = _newest(user, filters, [row["recipe"] for row in shown])
    return [_group(row, newest[row["recipe"]]) for row in shown], len(rows) > limit


def count(user, filters: RunFilters) -> int:
    return filters.restrict(Run.objects.for_user(user)).aggregate(n=Count("recipe", distinct=True))["n"]


def _aggregated(user, filters: RunFilters):
    runs = filters.restrict(Run.objects.for_user(user)).order_by()
    values = {f"{name}_value": Cast(KeyTextTransform("value", KeyTransform(name, "latest")), FloatField()) for name in MEASURED}
    measures = {}
    for name in MEASURED:
        # Postgres holds NaN greater than every number.
        finite = Q(**{f"{name}_value__gt": -_LARGEST, f"{name}_value__lt": _LARGEST})
        measures |= {
            f"{name}_mean": Avg(f"{name}_value", filter=finite),
            f"{name}_deviation": StdDev(f"{name}_value", sample=True, filter=finite),
            f"{name}_n": Count(f"{name}_value", filter=finite),
        }
    return (
        runs.annotate(**values)
        .values("recipe")
        .annotate(
            newest=Max("created_at"),
            runs=Count("pk"),
            seeds=ArrayAgg("seed", distinct=True, order_by="seed"),
            names=ArrayAgg("name", distinct=True),
            ids=ArrayAgg("pk", order_by=["seed", "created_at"]),
            first=Min("step"),
            last=Max("step"),
            **{f"is_{state}": Count("pk", filter=Q(state=state)) for state in STATES},
            **measures,
        )
    )


def _ordered(rows, sort: str):
    key = F(SORTS.get(sort.removeprefix("-"), "newest"))
    order = key.desc(nulls_last=True) if sort.startswith("-") else key.asc(nulls_last=True)
    return rows.order_by(order, "recipe")


def _newest(user, filters: RunFilters, recipes: list[str]) -> dict[str, Run]:
    runs = (
        filters.restrict(Run.objects.for_user(user))
        .filter(recipe__in=recipes)
        .select_related("owner", "project")
        .defer("config", "document")
    )
    return {run.recipe: run for run in runs.order_by("recipe", "-created_at").distinct("recipe")}


def _group(row: dict[str, Any], newest: Run) -> SeedGroup:
    measured = {}
    for name in MEASURED:
        mean, n = row[f"{name}_mean"], row[f"{name}_n"]
        measured[name] = Interval(None, None, None, 0) if mean is None else t_mean(mean, row[f"{name}_deviation"], n)
    return SeedGroup(
        recipe=row["recipe"],
        name=shared_name(row["names"]),
        newest=newest,
        runs=row["runs"],
        seeds=row["seeds"],
        ids=[str(pk) for pk in row["ids"]],
        states=[(state, row[f"is_{state}"]) for state in STATES if row[f"is_{state}"]],
        steps=(row["first"], row["last"]),
        measured=measured,
        created_at=row["newest"],
    )


def shared_name(names: list[str]) -> str:
    """What the names begin with alike, without a dangling "seed"; the first name when they share less than three letters."""
    shared = commonprefix(names)
    if len(names) > 1:
        shared = _LUCK.sub("", shared)
    return shared if len(shared) >= 3 else sorted(names)[0]
