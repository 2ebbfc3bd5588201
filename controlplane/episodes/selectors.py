"""Reading episodes: filters and facets for the browser, one episode with its turns, its siblings, the difference of two."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from uuid import UUID

from django.contrib.postgres.search import SearchQuery
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from controlplane.banks.models import Task
from controlplane.episodes.models import Episode, Label, Turn, searched
from controlplane.telemetry.text import json_number
from runner.contract.termination import HANDLING, Termination

ORDER = ("-step", "group", "sample", "id")
"""The order of the browser: newest step first, the episodes of a group side by side."""

SUMMARY = tuple(
    """
    id run_id attempt state stage step group sample purpose evaluation task domain worker policy_version policy_version_end
    termination prompt_tokens response_tokens turns seconds score parsed grade_reason
    advantage trained_step trained_tokens masked filters started_at finished_at
    """.split()
)
DETAIL = (*SUMMARY, *"seed error checks evidence facts grader grade_ordinal graded_score sampled trained token_texts".split())

FACETS = ("termination", "purpose", "state", "stage", "domain", "parsed", "filters")
MAX_FACET_VALUES = 50
MAX_DIFF_TURNS = 400
MAX_DIFF_CHARACTERS = 50_000
"""Longer turns are shown side by side: to align them takes time that grows with the square of their length."""


@dataclass(frozen=True)
class Filter:
    """What the browser asks for; an absent condition does not restrict. `missing`: only those without a reward, or with one."""

    termination: list[str] = field(default_factory=list)
    purpose: str | None = None
    state: list[str] = field(default_factory=list)
    stage: int | None = None
    attempt: int | None = None
    evaluation: UUID | None = None
    first_step: int | None = None
    last_step: int | None = None
    group: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    missing: bool | None = None
    parsed: bool | None = None
    failed: bool | None = None
    task: str = ""
    domain: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    label: str = ""
    search: str = ""


def is_failed() -> Q:
    """What *failed* means in the browser: a zero or negative score, an unparsed answer, or an end that no reward may follow."""
    broken = [reason.value for reason in Termination if HANDLING[reason].eval_error]
    return Q(score__lte=0) | Q(parsed=False) | Q(termination__in=broken)


def filter_episodes(rows: QuerySet[Episode], wanted: Filter) -> QuerySet[Episode]:
    """`rows` restricted to `wanted`, without the credit of their turns, which is long and no list shows."""
    exact = {
        "purpose": wanted.purpose,
        "stage": wanted.stage,
        "attempt": wanted.attempt,
        "evaluation": wanted.evaluation,
        "group": wanted.group,
        "parsed": wanted.parsed,
        "step__gte": wanted.first_step,
        "step__lte": wanted.last_step,
        "score__gte": wanted.reward_min,
        "score__lte": wanted.reward_max,
        "score__isnull": wanted.missing,
        "termination__in": wanted.termination or None,
        "state__in": wanted.state or None,
        "domain__in": wanted.domain or None,
        "filters__overlap": wanted.filters or None,
        "task__icontains": wanted.task or None,
    }
    rows = rows.filter(**{name: value for name, value in exact.items() if value is not None})
    if wanted.failed is not None:
        rows = rows.filter(is_failed()) if wanted.failed else rows.exclude(id__in=rows.filter(is_failed()).values("id"))
    if wanted.label:
        rows = rows.filter(Exists(Label.objects.filter(episode=OuterRef("pk"), name=wanted.label)))
    rows = rows.defer("turn_credit")
    return _search(rows, wanted.search) if wanted.search.strip() else rows


def _search(rows: QuerySet[Episode], text: str) -> QuerySet[Episode]:
    """Episodes with a turn that matches `text`: words, "phrases", or, -not."""
    query = SearchQuery(text, config="simple", search_type="websearch")
    matching = Turn.objects.annotate(words=searched()).filter(words=query)
    return rows.filter(id__in=matching.values("episode_id"))


@dataclass(frozen=True)
class Population:
    """How many episodes a page is about, and the mean reward of those that have one."""

    episodes: int
    graded: int
    mean_reward: float | None


def counted(rows: QuerySet[Episode], wanted: Filter) -> tuple[Population, dict[str, list[tuple]]]:
    """The population that `wanted` leaves of `rows`, and for each of FACETS its (value, episodes) pairs, most frequent first.

    A facet is counted under all conditions but its own. A missing reward is counted apart and enters no mean. One pass over the rows for
    both, because a search that finds much takes most of its time there: they are grouped by all facets at once, and the facets' own
    conditions are applied to the groups.
    """
    chosen = [name for name in FACETS if getattr(wanted, name) not in (None, [])]
    open_to_all = filter_episodes(rows, replace(wanted, **{name: getattr(Filter(), name) for name in chosen}))
    numbers = {"episodes": Count("id"), "graded": Count("score"), "rewards": Sum("score")}
    counts: dict[str, Counter] = {name: Counter() for name in FACETS}
    kept: list[tuple[int, int, float]] = []
    for *values, episodes, graded, rewards in open_to_all.order_by().values_list(*FACETS).annotate(**numbers):
        group = dict(zip(FACETS, values, strict=True))
        failed = [name for name in chosen if not _is_wanted(group[name], getattr(wanted, name))]
        if not failed:
            kept.append((episodes, graded, rewards or 0.0))
        for name in FACETS if not failed else failed if len(failed) == 1 else ():
            for value in set(group[name]) if name == "filters" else (group[name],):
                counts[name][value] += episodes
    return _population(kept), {name: _most_frequent(found) for name, found in counts.items()}


def _population(groups: list[tuple[int, int, float]]) -> Population:
    """From each group's episodes, how many of them have a reward, and the sum of those."""
    episodes, graded, rewards = (sum(column) for column in zip(*groups, strict=True)) if groups else (0, 0, 0.0)
    return Population(episodes, graded, rewards / graded if graded else None)


def _is_wanted(value, wanted) -> bool:
    if isinstance(value, list):
        return not set(value).isdisjoint(wanted)
    return value in wanted if isinstance(wanted, list) else value == wanted


def _most_frequent(counted: Counter) -> list[tuple]:
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0] is None, pair[0]))[:MAX_FACET_VALUES]


# ---------------------------------------------------------------- rows as JSON
def summary(episode: Episode) -> dict:
    """The episode as lists and live frames carry it. A null score is missing, never 0."""
    return {name: _plain(getattr(episode, name)) for name in SUMMARY}


def detail(episode: Episode) -> dict:
    """The episode with everything but its turns and tokens."""
    return {name: _plain(getattr(episode, name)) for name in DETAIL}


def turn_row(turn: Turn) -> dict:
    """One turn, its text whole; `turn` is one of `turns_of`."""
    names = ("index", "role", "author", "text", "tokens", "reward", "facts", "credit")
    return {name: _plain(getattr(turn, name)) for name in names}


def label_row(label: Label) -> dict:
    author = label.user.username if label.user else None
    return {"id": label.id, "name": label.name, "comment": label.comment, "user": author, "created_at": label.created_at.isoformat()}


def _plain(value):
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


# ---------------------------------------------------------------- one episode
def check_floors(episode: Episode) -> dict[str, float]:
    """What the unrepaired code scores at each check of a container episode's task, as its bank recorded it; empty where it did not."""
    if not episode.facts.get("phases"):
        return {}
    task = Task.objects.filter(version=episode.run.bank_version_id, key=episode.task).values_list("payload__facts__floor_per_check").first()
    found = task[0] if task and isinstance(task[0], dict) else {}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def turns_of(episode: Episode, after: int = -1, limit: int = 200) -> list[Turn]:
    """Turns with an index above `after`, in order; each with its `credit`, None where its method gives turns none."""
    return list(_credited(episode, episode.turn_rows.filter(index__gt=after).order_by("index")[:limit]))


def _credited(episode: Episode, turns: Iterable[Turn]) -> Iterator[Turn]:
    credits = {item["index"]: item for item in episode.turn_credit}
    for turn in turns:
        turn.credit = credits.get(turn.index)
        yield turn


def siblings(episode: Episode) -> QuerySet[Episode]:
    """The episodes of the same group, this one included: the same task at the same step of the same attempt."""
    same = {name: getattr(episode, name) for name in ("run_id", "attempt", "stage", "step", "group", "purpose", "evaluation")}
    return Episode.objects.filter(**same).defer("turn_credit").order_by("sample", "id")


def neighbours(rows: QuerySet[Episode], episode: Episode) -> tuple[UUID | None, UUID | None]:
    """The episodes before and after `episode` in ORDER among `rows`."""
    after = _behind(episode, forward=True)
    before = _behind(episode, forward=False)
    backwards = [name.removeprefix("-") if name.startswith("-") else f"-{name}" for name in ORDER]
    return (
        rows.filter(before).order_by(*backwards).values_list("id", flat=True).first(),
        rows.filter(after).order_by(*ORDER).values_list("id", flat=True).first(),
    )


def _behind(episode: Episode, forward: bool) -> Q:
    condition = Q()
    for name in reversed(ORDER):
        column = name.removeprefix("-")
        side = "gt" if forward != name.startswith("-") else "lt"
        here = Q(**{column: getattr(episode, column)})
        condition = Q(**{f"{column}__{side}": getattr(episode, column)}) | (here & condition if condition else Q(pk__in=[]))
    return condition


@dataclass(frozen=True)
class TurnPair:
    """Aligned turns of two episodes; `kind` is equal, changed, left or right (only there). `pieces` are (kind, left text, right text)."""

    kind: str
    left: Turn | None
    right: Turn | None
    pieces: list[tuple[str, str, str]] = field(default_factory=list)


def compare_turns(left: Iterable[Turn], right: Iterable[Turn]) -> list[TurnPair]:
    """Align by turn, then word by word inside changed turns."""
    left, right = list(left)[:MAX_DIFF_TURNS], list(right)[:MAX_DIFF_TURNS]
    matcher = SequenceMatcher(None, [(turn.role, turn.text) for turn in left], [(turn.role, turn.text) for turn in right], autojunk=False)
    pairs = []
    for kind, i, j, k, m in matcher.get_opcodes():
        ours, theirs = left[i:j], right[k:m]
        for index in range(max(len(ours), len(theirs))):
            pairs.append(_pair(kind, ours[index] if index < len(ours) else None, theirs[index] if index < len(theirs) else None))
    return pairs


def _pair(kind: str, left: Turn | None, right: Turn | None) -> TurnPair:
    if left is None or right is None:
        return TurnPair("left" if right is None else "right", left, right)
    if kind == "equal":
        return TurnPair("equal", left, right)
    return TurnPair("changed", left, right, compare_words(left.text, right.text))


def compare_words(left: str, right: str) -> list[tuple[str, str, str]]:
    """(kind, left text, right text) pieces with kind equal or changed; joined they give back both texts."""
    if left == right:
        return [("equal", left, right)] if left else []
    if max(len(left), len(right)) > MAX_DIFF_CHARACTERS:
        return [("changed", left, right)]
    ours, theirs = _words(left), _words(right)
    opcodes = SequenceMatcher(None, ours, theirs, autojunk=len(ours) * len(theirs) > 4_000_000).get_opcodes()
    return [("equal" if kind == "equal" else "changed", "".join(ours[i:j]), "".join(theirs[k:m])) for kind, i, j, k, m in opcodes]


def _words(text: str) -> list[str]:
    """Words, each with the blanks that follow it."""
    words, start = [], 0
    for position in range(1, len(text)):
        if text[position - 1].isspace() and not text[position].isspace():
            words.append(text[start:position])
            start = position
    return [*words, text[start:]] if text else []


def export(episode: Episode) -> dict:
    """The whole episode as one JSON document, without its token blobs, which it names."""
    labels = episode.labels.select_related("user").order_by("id")
    turns = _credited(episode, episode.turn_rows.order_by("index").iterator(chunk_size=500))
    return {**detail(episode), "turns_text": [turn_row(turn) for turn in turns], "labels": [label_row(label) for label in labels]}
