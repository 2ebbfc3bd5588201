"""/ws/live: one socket a page. It says what it wants to see; it writes nothing but to its own socket."""

import asyncio
import logging
from typing import Annotated, Literal
from uuid import UUID

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from controlplane.accounts.models import Membership, User
from controlplane.accounts.sessions import user_of_session
from controlplane.columns import dump
from controlplane.episodes.models import Episode
from controlplane.runs.models import Run
from controlplane.telemetry.delta import Delta, Interest
from controlplane.telemetry.hub import FRAME_S, Member, hub
from controlplane.telemetry.live import CLUSTER_TOPIC, team_topic

logger = logging.getLogger(__name__)

NOT_SIGNED_IN = 4401
NO_LONGER_ALLOWED = 4403
MAX_MESSAGE = 256 << 10
MAX_TOPICS = 100
MAX_PENDING_ROWS = 20_000
LISTS_EVERY = 4
"""A list is told at most every so many frame times that it changed."""
RECHECK_S = 60.0


# ---------------------------------------------------------------- what a page may say
class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunTopic(_Said):
    topic: Literal["run"]
    run: UUID
    cursor: int | None = Field(None, ge=0, lt=2**62)
    series: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=500)
    logs: bool = False
    episodes: bool = False


class EpisodeTopic(_Said):
    topic: Literal["episode"]
    episode: UUID


class ListTopic(_Said):
    topic: Literal["runs", "cluster"]


Topic = Annotated[RunTopic | EpisodeTopic | ListTopic, Field(discriminator="topic")]


class Subscribe(_Said):
    type: Literal["subscribe"]
    topics: list[Topic] = Field(max_length=MAX_TOPICS)


class Unsubscribe(_Said):
    type: Literal["unsubscribe"]
    topics: list[Topic] = Field(max_length=MAX_TOPICS)


class Ping(_Said):
    type: Literal["ping"]


_MESSAGE = TypeAdapter(Annotated[Subscribe | Unsubscribe | Ping, Field(discriminator="type")])


def topic_key(topic: Topic) -> tuple:
    """What makes two topics the same subscription."""
    return topic.topic, getattr(topic, "run", None) or getattr(topic, "episode", None)


# ---------------------------------------------------------------- what waits to be sent
class PendingFrame:
    """Frames of one run that were not sent yet, merged into one."""

    def __init__(self, delta: Delta):
        self.delta = delta

    def add(self, later: Delta) -> None:
        mine = self.delta
        for name, rows in later.points.items():
            mine.points.setdefault(name, []).extend(rows)
        mine.names = mine.names + later.names
        mine.logs, mine.logs_skipped = mine.logs + later.logs, mine.logs_skipped + later.logs_skipped
        mine.episodes, mine.events = mine.episodes + later.episodes, mine.events + later.events
        mine.cursor, mine.run_state = later.cursor, later.run_state

    @property
    def rows(self) -> int:
        return sum(map(len, self.delta.points.values())) + len(self.delta.logs) + len(self.delta.episodes) + len(self.delta.events)

    def message(self, run: UUID) -> dict:
        return {"type": "frame", "topic": "run", "run": str(run), **vars(self.delta)}


class SocketOutbox:
    """Bounded: what a slow client does not take is merged, and beyond MAX_PENDING_ROWS replaced by a reset."""

    def __init__(self):
        self.frames: dict[UUID, PendingFrame] = {}
        self.resets: set[UUID] = set()
        self.lists: dict[str, set[str]] = {}
        self.wake = asyncio.Event()
        self.on_reset = lambda run: None

    def frame(self, run: UUID, delta: Delta) -> None:
        if run in self.frames:
            self.frames[run].add(delta)
        else:
            self.frames[run] = PendingFrame(delta)
        if self.frames[run].rows > MAX_PENDING_ROWS:
            self.reset(run)
        self.wake.set()

    def reset(self, run: UUID) -> None:
        self.frames.pop(run, None)
        self.resets.add(run)
        self.on_reset(run)
        self.wake.set()

    def changed(self, topic: str, id: str) -> None:
        self.lists.setdefault(topic, set()).add(id)
        self.wake.set()

    def forget(self, run: UUID) -> None:
        self.frames.pop(run, None)
        self.resets.discard(run)

    def take(self, lists_too: bool) -> list[dict]:
        """Everything to send now."""
        messages = [{"type": "reset", "run": str(run)} for run in self.resets]
        messages += [pending.message(run) for run, pending in self.frames.items()]
        self.resets, self.frames = set(), {}
        if lists_too:
            messages += [{"type": "changed", "topic": topic, "ids": sorted(ids - {""})} for topic, ids in self.lists.items()]
            self.lists = {}
        return messages


# ---------------------------------------------------------------- the socket
class LiveConsumer(AsyncWebsocketConsumer):
    """Signed-in users only; the origin was checked before. Each topic is checked against the user's teams."""

    # Notices come through the hub, one connection a process, not one a socket.
    channel_layer_alias = "unused"

    async def connect(self) -> None:
        self.topics: dict[tuple, Topic] = {}
        # The run behind each run or episode topic.
        self.runs: dict[tuple, UUID] = {}
        self.tasks: list[asyncio.Task] = []
        self.user = self.scope.get("user")
        self.teams: frozenset[int] = frozenset()
        await self.accept()
        if self.user is None or not self.user.is_authenticated:
            return await self.close(NOT_SIGNED_IN)
        self.outbox = SocketOutbox()
        # A client that was reset gets nothing of that run until it subscribes again.
        self.outbox.on_reset = self._drop_run
        self.hub = hub()
        self.tasks = [asyncio.create_task(self._send_for_ever()), asyncio.create_task(self._recheck_for_ever())]

    async def disconnect(self, code: int) -> None:
        for task in self.tasks:
            task.cancel()
        for topic in list(self.topics.values()):
            self._unsubscribe(topic)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.tasks:
            return
        try:
            message = self._read(text_data)
        except ValueError as error:
            return await self._error(str(error))
        if message.type == "ping":
            return await self._say({"type": "pong"})
        for topic in message.topics:
            self._unsubscribe(topic)
            if message.type == "subscribe":
                await self._subscribe(topic)

    def _read(self, text: str | None) -> Subscribe | Unsubscribe | Ping:
        if text is None or len(text) > MAX_MESSAGE:
            raise ValueError(f"send JSON text of at most {MAX_MESSAGE} characters")
        try:
            return _MESSAGE.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"/{'/'.join(map(str, first['loc']))}: {first['msg']}") from None

    # ------------------------------------------------------------ subscriptions
    async def _subscribe(self, topic: Topic) -> None:
        if len(self.topics) >= MAX_TOPICS:
            return await self._error(f"at most {MAX_TOPICS} topics a socket; unsubscribe from others first")
        self.topics[topic_key(topic)] = topic
        if isinstance(topic, ListTopic):
            return await self._watch_list(topic)
        run = await database_sync_to_async(run_of)(self.user, topic)
        if run is None:
            del self.topics[topic_key(topic)]
            return await self._error(f"{topic.topic} {topic_key(topic)[1]}: there is none, or it is another team's")
        self.runs[topic_key(topic)] = run
        await self.hub.join(run, self._member_key(topic), Member(self.outbox, interest_of(topic)), getattr(topic, "cursor", None))

    def _member_key(self, topic: Topic) -> tuple:
        return id(self), topic_key(topic)

    async def _watch_list(self, topic: ListTopic) -> None:
        for name in await self._list_topics(topic):
            self.hub.watch(name, self.outbox, topic.topic)

    async def _list_topics(self, topic: ListTopic) -> list[str]:
        if topic.topic == "cluster":
            return [CLUSTER_TOPIC]
        self.teams = frozenset(await database_sync_to_async(teams_of)(self.user))
        return [team_topic(team) for team in self.teams]

    def _unsubscribe(self, topic: Topic) -> None:
        key = topic_key(topic)
        if self.topics.pop(key, None) is None:
            return
        if run := self.runs.pop(key, None):
            self.hub.leave(run, self._member_key(topic))
            if topic.topic == "run":
                self.outbox.forget(run)
            return
        for name in [name for name, watchers in self.hub.watchers.items() if watchers.get(self.outbox) == topic.topic]:
            self.hub.unwatch(name, self.outbox)

    def _drop_run(self, run: UUID) -> None:
        for key in [key for key, of in self.runs.items() if of == run and key[0] == "run"]:
            self.topics.pop(key, None)
            self.runs.pop(key)
            # Not at once: the room is handing out frames to its members right now.
            asyncio.get_running_loop().call_soon(self.hub.leave, run, (id(self), key))

    # ------------------------------------------------------------ sending
    async def _send_for_ever(self) -> None:
        ticks = 0
        while True:
            await self.outbox.wake.wait()
            ticks += 1
            lists_too = ticks % LISTS_EVERY == 1
            if lists_too or not self.outbox.lists:
                self.outbox.wake.clear()
            for message in self.outbox.take(lists_too):
                await self._say(message)
            await asyncio.sleep(FRAME_S)

    async def _say(self, message: dict) -> None:
        await self.send(dump(message).decode())

    async def _error(self, detail: str) -> None:
        await self._say({"type": "error", "detail": detail})

    async def _recheck_for_ever(self) -> None:
        """Whoever signed out, was disabled, has a new password or left the team stops seeing its runs within a minute."""
        while True:
            await asyncio.sleep(RECHECK_S)
            session = self.scope["session"].session_key
            if not await database_sync_to_async(still_allowed)(session, self.teams, list(self.topics.values())):
                return await self.close(NO_LONGER_ALLOWED)


# ---------------------------------------------------------------- permission
def interest_of(topic: RunTopic | EpisodeTopic) -> Interest:
    if isinstance(topic, EpisodeTopic):
        return Interest(watched=frozenset([topic.episode]))
    return Interest(frozenset(topic.series), topic.logs, topic.episodes)


def run_of(user: User, topic: RunTopic | EpisodeTopic) -> UUID | None:
    """The run behind a topic, if it is one of the user's teams'."""
    if isinstance(topic, EpisodeTopic):
        return Episode.objects.for_user(user).filter(pk=topic.episode).values_list("run_id", flat=True).first()
    return Run.objects.for_user(user).filter(pk=topic.run).values_list("pk", flat=True).first()


def teams_of(user: User) -> list[int]:
    return list(Membership.objects.filter(user=user).values_list("team_id", flat=True))


def still_allowed(session: str, teams: frozenset[int], topics: list[Topic]) -> bool:
    """Whether the session goes on and its user may still see everything that was subscribed to, the lists of `teams` among it."""
    user = user_of_session(session)
    if user is None or not teams <= set(teams_of(user)):
        return False
    return all(isinstance(topic, ListTopic) or run_of(user, topic) is not None for topic in topics)
