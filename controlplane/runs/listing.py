"""The list of runs: filters as the URL states them, facet counts in one query, keyset pages under every sort."""

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import Count, F, FloatField, Q, QuerySet, Value
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce

from controlplane.runs.models import Run

REWARD = "critic/score/mean"
FACETS = {
    "state": "state",
    "method": "method",
    "environment": "environment",
    "model": "model",
    "project": "project__slug",
    "owner": "owner__username",
    "experiment": "experiment",
}
# What runs are counted by. The index run_facets holds these and no more, and so they are counted without reading a single run.
_COUNTED = ("project_id", "state", "method", "environment", "model", "experiment", "owner_id")
_NAMED = """SELECT counted.*, project.slug AS project__slug, owner.username AS owner__username
            FROM counted JOIN accounts_project AS project ON project.id = project_id LEFT JOIN accounts_user AS owner ON owner.id = owner_id"""
PAGE = 50
# Of a facet; who looks for another one searches.
VALUES = 40
# Below every finite reward, so that runs without one come last when the best come first.
_NO_REWARD = Value(float("-inf"), FloatField())
SORTS = {
    "created": F("created_at"),
    "name": F("name"),
    "step": F("step"),
    "reward": Coalesce(Cast(KeyTextTransform("value", KeyTransform("reward", "latest")), FloatField()), _NO_REWARD),
}
READERS = {"created": datetime.fromisoformat, "name": str, "step": int, "reward": float}
DEFAULT_SORT = "-created"
# What a row shows: of all the columns of a run, its project and its owner, reading them takes longer than finding them.
SHOWN = (
    *"name state experiment tags method model environment seed total_steps step latest created_at".split(),
    *("project__name", "owner__username"),
)


class InvalidFilter(ValueError):
    """A query parameter cannot be read; the message names it, its value and the remedy."""


@dataclass(frozen=True)
class RunFilters:
    """What the query parameters of a list mean. Values inside one facet are alternatives; facets narrow each other."""

    search: str = ""
    tag: str = ""
    recipe: str = ""
    archived: bool = False
    sort: str = DEFAULT_SORT
    facets: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, parameters: Mapping) -> "RunFilters":
        """From a QueryDict. Unknown parameters belong to someone else and are left alone. Raises InvalidFilter."""
        sort = parameters.get("sort") or DEFAULT_SORT
        if sort.removeprefix("-") not in SORTS:
            raise InvalidFilter(f"sort: {sort!r} is none of {', '.join(SORTS)}, each with or without a leading -")
        facets = {name: tuple(parameters.getlist(name)) for name in FACETS if parameters.getlist(name)}
        return cls(
            search=(parameters.get("q") or "").strip(),
            tag=parameters.get("tag") or "",
            recipe=parameters.get("recipe") or "",
            archived=parameters.get("archived") == "1",
            sort=sort,
            facets=facets,
        )

    @property
    def narrowed(self) -> bool:
        return bool(self.search or self.tag or self.recipe or self.facets)

    def chosen(self) -> list[tuple[str, str]]:
        """Each chosen value as (facet, value), for the chips above the table."""
        return [(name, value) for name, values in self.facets.items() for value in values]

    def restrict(self, runs: QuerySet, facets: bool = True) -> QuerySet:
        runs = runs.filter(archived_at__isnull=not self.archived)
        if self.search:
            runs = runs.filter(self._found())
        if self.tag:
            runs = runs.filter(tags__contains=[self.tag])
        if self.recipe:
            runs = runs.filter(recipe=self.recipe)
        if facets:
            for name, values in self.facets.items():
                runs = runs.filter(**{f"{FACETS[name]}__in": values})
        return runs

    def _found(self) -> Q:
        words = Q(name__icontains=self.search) | Q(experiment__icontains=self.search) | Q(tags__contains=[self.search])
        start = self.search.lower().replace("-", "")
        if len(start) >= 4 and all(letter in "0123456789abcdef" for letter in start) and len(start) <= 32:
            words |= Q(id__range=(uuid.UUID(hex=start.ljust(32, "0")), uuid.UUID(hex=start.ljust(32, "f"))))
        return words


@dataclass(frozen=True)
class Facet:
    """One facet with its values as (value, runs, chosen), the most frequent first."""

    name: str
    values: list[tuple[str, int, bool]]

    @property
    def any_chosen(self) -> bool:
        return any(chosen for _, _, chosen in self.values)


def facets(user, filters: RunFilters) -> tuple[int, list[Facet]]:
    """How many runs the filters keep, and each facet's most frequent values counted under all the *other* facets' choices."""
    runs = filters.restrict(Run.objects.for_user(user), facets=False).order_by().values(*_COUNTED).annotate(n=Count("*"))
    counted, parameters = runs.query.sql_with_params()
    parts = [_total(filters.facets), *(_counts(name, filters.facets) for name in FACETS)]
    query = f"WITH counted AS ({counted}), kept AS MATERIALIZED ({_NAMED}) {' UNION ALL '.join(f'({part})' for part, _ in parts)}"
    found: dict[str, dict[str, int]] = {name: {} for name in ("", *FACETS)}
    with connection.cursor() as cursor:
        cursor.execute(query, [*parameters, *(value for _, values in parts for value in values)])
        for name, value, count in cursor.fetchall():
            found[name][value] = int(count)
    return found[""][""], [_facet(name, found[name], filters.facets.get(name, ())) for name in FACETS]


def _total(chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, list]:
    where, parameters = _holding(chosen)
    return f"SELECT '', '', coalesce(sum(n), 0) FROM kept WHERE {where}", parameters


def _counts(name: str, chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, list]:
    """One facet's values and counts, those chosen before all others. Blank values are no choice."""
    where, parameters = _holding({other: values for other, values in chosen.items() if other != name})
    column = f'"{FACETS[name]}"'
    query = f"""SELECT '{name}', {column}, sum(n) FROM kept WHERE {column} <> '' AND {where} GROUP BY {column}
                ORDER BY {column} = ANY(%s) DESC, 3 DESC, 2 LIMIT {VALUES}"""
    return query, [*parameters, list(chosen.get(name, ()))]


def _holding(chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, list]:
    conditions = [f'"{FACETS[name]}" = ANY(%s)' for name in chosen]
    return " AND ".join(conditions) or "true", [list(values) for values in chosen.values()]


def _facet(name: str, counts: dict[str, int], chosen: tuple[str, ...]) -> Facet:
    """A chosen value stays on offer when nothing is left of it."""
    found = {**counts, **{value: 0 for value in chosen if value not in counts}}
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return Facet(name, [(value, count, value in chosen) for value, count in ranked])


@dataclass(frozen=True)
class Page:
    """`cursor` leads to the following page; None at the end."""

    runs: list[Run]
    cursor: str | None


def page(user, filters: RunFilters, cursor: str | None = None, limit: int = PAGE) -> Page:
    """Up to `limit` runs after `cursor`. Raises InvalidFilter for a cursor that we did not make."""
    key, descending = filters.sort.removeprefix("-"), filters.sort.startswith("-")
    runs = filters.restrict(Run.objects.for_user(user)).annotate(sort_key=SORTS[key]).select_related("project", "owner")
    if cursor:
        runs = runs.filter(_after(*_read(cursor, key), descending))
    order = ["-sort_key", "-id"] if descending else ["sort_key", "id"]
    found = list(runs.only(*SHOWN).order_by(*order)[: limit + 1])
    following = _write(found[limit - 1]) if len(found) > limit else None
    return Page(found[:limit], following)


def by_ids(user, ids: list[uuid.UUID]) -> list[Run]:
    """The rows of a list that changed, in no particular order."""
    return list(Run.objects.for_user(user).filter(pk__in=ids).select_related("project", "owner").only(*SHOWN))


def _after(value, identifier: uuid.UUID, descending: bool) -> Q:
    beyond = "lt" if descending else "gt"
    return Q(**{f"sort_key__{beyond}": value}) | Q(sort_key=value) & Q(**{f"id__{beyond}": identifier})


def _write(run: Run) -> str:
    value = run.sort_key.isoformat() if hasattr(run.sort_key, "isoformat") else str(run.sort_key)
    return base64.urlsafe_b64encode(json.dumps([value, run.pk.hex]).encode()).decode().rstrip("=")


def _read(cursor: str, key: str) -> tuple:
    try:
        value, identifier = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return READERS[key](value), uuid.UUID(hex=identifier)
    except (ValueError, TypeError) as error:
        raise InvalidFilter(f"cursor: {cursor!r:.60} is not one of ours ({error}); start from the first page") from None
