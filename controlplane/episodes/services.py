"""What happens to episodes: five kinds of event fold into one row, in whatever order they come; people label them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import connection, transaction
from django.db.models import Q

from controlplane.episodes.models import Episode, Label
from controlplane.telemetry.reading import Reader, moment
from runner.contract.episode import EventKind
from runner.contract.events import InvalidBatch
from runner.contract.states import EpisodeState
from runner.contract.termination import HANDLING, Termination, trusted_reward

_VERIFIER_FAILED = {Termination.VERIFIER_ERROR, Termination.VERIFIER_TIMEOUT}

_INSERT_EVENTS = """
    INSERT INTO episodes_episodeevent (episode_id, kind, ordinal, at)
    SELECT * FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::timestamptz[])
    ON CONFLICT DO NOTHING RETURNING episode_id, kind, ordinal
"""

# Rows go as one JSON document: for hundreds of episodes of forty columns, a placeholder a value takes longer than the insert itself.
_EPISODE_COLUMNS = [connection.ops.quote_name(field.column) for field in Episode._meta.concrete_fields]
_UPSERT_EPISODES = f"""
    INSERT INTO episodes_episode ({", ".join(_EPISODE_COLUMNS)})
    SELECT {", ".join(_EPISODE_COLUMNS)} FROM jsonb_populate_recordset(NULL::episodes_episode, %s::jsonb)
    ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = EXCLUDED.{name}" for name in _EPISODE_COLUMNS if name != '"id"')}
"""
_INSERT_TURNS = """
    INSERT INTO episodes_turn (episode_id, index, role, author, text, tokens, reward, facts)
    SELECT episode_id, index, role, author, text, tokens, reward, facts
    FROM jsonb_populate_recordset(NULL::episodes_turn, %s::jsonb)
    ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Event:
    """A delivered event whose envelope was checked."""

    episode: UUID
    kind: EventKind
    ordinal: int
    at: datetime
    data: dict[str, Any]

    @property
    def key(self) -> tuple:
        return self.episode, self.kind.value, self.ordinal


# ---------------------------------------------------------------- what a runner sent
def _read_event(item: dict) -> Event:
    try:
        episode = UUID(item["episode"])
    except ValueError:
        raise InvalidBatch(f"episodes.episode: {item['episode']!r:.60} is no UUID") from None
    if not 0 <= item["ordinal"] < 2**31:
        raise InvalidBatch(f"episodes.ordinal: {item['ordinal']} must lie in 0 to 2^31")
    return Event(episode, EventKind(item["kind"]), item["ordinal"], moment(item["t"]), item["data"])


def _reader(event: Event) -> Reader:
    return Reader(f"episodes.{event.kind}", event.data)


# ---------------------------------------------------------------- folding
def _apply_started(episode: Episode, event: Event, read: Reader) -> None:
    episode.stage, episode.step = read.whole("stage") or 0, read.whole("step", 53) or 0
    episode.group, episode.sample = read.whole("group") or 0, read.whole("sample") or 0
    episode.task, episode.domain = read.text("task", 200), read.text("domain", 80)
    episode.purpose = "eval" if read.text("purpose") == "eval" else "train"
    episode.evaluation, episode.worker = read.uuid("evaluation"), read.text("worker", 60)
    episode.policy_version, episode.seed = read.whole("policy_version", 63), read.whole("seed", 63)
    episode.started_at = event.at


def _apply_turn(episode: Episode, event: Event, read: Reader) -> None:
    """A turn has a row of its own; to the episode it only says that it runs."""


def _apply_finished(episode: Episode, event: Event, read: Reader) -> None:
    episode.told_termination = read.termination("termination") or Termination.UNKNOWN.value
    episode.policy_version_end = read.whole("policy_version", 63)
    episode.prompt_tokens, episode.response_tokens = read.whole("prompt_tokens"), read.whole("response_tokens")
    episode.turns, episode.seconds = read.whole("turns"), read.number("seconds")
    episode.error = read.text("error")
    episode.sampled, episode.token_texts = read.digest("sampled"), read.digest("token_texts")
    episode.finished_at = event.at
    episode.facts = read.document("facts")


def _apply_graded(episode: Episode, event: Event, read: Reader) -> None:
    if episode.grade_ordinal is not None and event.ordinal < episode.grade_ordinal:
        return
    episode.grade_ordinal = event.ordinal
    episode.graded_score, episode.graded_termination = read.number("score"), read.termination("termination")
    if episode.graded_score is not None and not math.isfinite(episode.graded_score):
        episode.graded_score, episode.graded_termination = None, Termination.VERIFIER_ERROR.value
    episode.grade_reason, episode.grader = read.text("reason", 200), read.text("grader", 60)
    episode.parsed = read.flag("parsed")
    episode.checks, episode.evidence = read.document("checks"), read.document("evidence")


def _apply_trained(episode: Episode, event: Event, read: Reader) -> None:
    step = read.whole("step", 53) or 0
    if episode.trained_step is not None and step < episode.trained_step:
        return
    episode.trained_step, episode.advantage = step, read.number("advantage")
    episode.trained_tokens, episode.masked = read.whole("trained_tokens"), read.flag("masked")
    episode.filters, episode.trained = read.names("filters"), read.digest("trained")
    episode.turn_credit = [_turn_credit(Reader(f"{read.where}.turns", row)) for row in read.maps("turns")]


def _turn_credit(read: Reader) -> dict:
    numbers = ("return", "episode_advantage", "step_advantage", "advantage")
    counts = ("turn", "index", "group_size", "group_episodes")
    told = {name: read.finite(name) for name in numbers} | {name: read.whole(name) for name in counts}
    return {**told, "anchor": read.text("anchor", 64) or None, "valid": read.flag("valid") is not False}


_APPLY = {
    EventKind.STARTED: _apply_started,
    EventKind.TURN: _apply_turn,
    EventKind.FINISHED: _apply_finished,
    EventKind.GRADED: _apply_graded,
    EventKind.TRAINED: _apply_trained,
}


def conclude(episode: Episode) -> None:
    """Set termination, score and state from what was told, whichever event came first.

    A grading that failed changes the termination; a later one that succeeded (a regrade) lifts the failure. The score is the trusted one:
    null whenever the termination forbids trusting it.
    """
    termination = episode.graded_termination or episode.told_termination
    regraded = bool(episode.grade_ordinal) and episode.graded_score is not None
    if regraded and termination in _VERIFIER_FAILED:
        termination = Termination.FINISHED.value
    episode.termination = termination
    episode.score = trusted_reward(Termination(termination), episode.graded_score) if termination else episode.graded_score
    episode.state = _state(episode)


def _state(episode: Episode) -> EpisodeState:
    if not episode.told_termination:
        return EpisodeState.RUNNING if episode.grade_ordinal is None else EpisodeState.GRADING
    if HANDLING[Termination(episode.termination)].train == "dropped":
        return EpisodeState.ABORTED
    known = episode.grade_ordinal is not None or episode.trained_step is not None
    return EpisodeState.DONE if known else EpisodeState.GRADING


# ---------------------------------------------------------------- writing
def record_events(attempt, items: list[dict]) -> list[UUID]:
    """Store episode events, each once, inside the caller's transaction; returns the episodes they changed.

    `items` are the batch's `episodes` (`runner.contract.events`). Raises InvalidBatch, naming the field.
    """
    events: dict[tuple, Event] = {}
    for event in map(_read_event, items):
        events.setdefault(event.key, event)
    if not events:
        return []
    new = _insert_events(list(events.values()))
    fresh = [event for key, event in events.items() if key in new]
    episodes = _episodes(attempt, {event.episode for event in fresh})
    for event in fresh:
        _APPLY[event.kind](episodes[event.episode], event, _reader(event))
    for episode in episodes.values():
        conclude(episode)
    _save(episodes.values())
    _save_turns([_turn(event) for event in fresh if event.kind is EventKind.TURN])
    return list(episodes)


def _insert_events(events: list[Event]) -> set[tuple]:
    columns = zip(*((event.episode, event.kind.value, event.ordinal, event.at) for event in events), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_EVENTS, [list(column) for column in columns])
        return set(cursor.fetchall())


def _episodes(attempt, ids: set[UUID]) -> dict[UUID, Episode]:
    found = Episode.objects.in_bulk(ids)
    for episode in found.values():
        if episode.run_id != attempt.run_id:
            raise InvalidBatch(f"episodes.episode: {episode.pk} belongs to another run")
    return {id: found.get(id) or Episode(id=id, run_id=attempt.run_id, attempt=attempt.number) for id in sorted(ids)}


_COLUMNS = [field.attname for field in Episode._meta.concrete_fields]


def _save(episodes: Iterable[Episode]) -> None:
    rows = [{name: _json_value(getattr(episode, name)) for name in _COLUMNS} for episode in episodes]
    with connection.cursor() as cursor:
        cursor.execute(_UPSERT_EPISODES, [orjson.dumps(rows).decode()])


def _json_value(value):
    # JSON has no such numbers; Postgres reads them from text.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _save_turns(turns: list[dict]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_TURNS, [orjson.dumps(turns).decode()])


def _turn(event: Event) -> dict:
    read = _reader(event)
    index = read.whole("index")
    return {
        "episode_id": event.episode,
        "index": event.ordinal if index is None else index,
        "role": read.text("role", 12),
        "author": read.text("author", 12),
        "text": read.text("text"),
        "tokens": read.whole("tokens"),
        "reward": _json_value(read.number("reward")),
        "facts": read.document("facts"),
    }


def abandon_open(run_id, attempt: int) -> int:
    """Mark the episodes that a dead attempt left running as lost; returns how many. Should their events still come, those win."""
    open_rows = Q(state__in=[EpisodeState.QUEUED, EpisodeState.RUNNING], told_termination="")
    return Episode.objects.filter(open_rows, run_id=run_id, attempt=attempt).update(
        state=EpisodeState.ABORTED, termination=Termination.INFRA_LOST, score=None
    )


@transaction.atomic
def label_episode(user, episode: Episode, name: str, comment: str) -> Label:
    """Attach a person's word to an episode. Raises ValueError when both name and comment are blank."""
    name, comment = name.strip(), comment.strip()
    if not name and not comment:
        raise ValueError("name, comment: both are blank; give at least one")
    return Label.objects.create(episode=episode, user=user, name=name, comment=comment)
