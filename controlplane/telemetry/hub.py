"""One reader for each watched run of this process: it reads what changed once, and hands it to every socket that watches.

notice on Redis ─▶ Hub.hear ─▶ Room.changed ─▶ Room.look: read_delta ─▶ each member's outbox
subscribe with a cursor ─▶ Room.join: read_delta from that cursor ─▶ this member's outbox
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import redis.asyncio
from channels.db import database_sync_to_async
from django.conf import settings
from django.db import Error as DatabaseError

from controlplane.runs.models import Run
from controlplane.telemetry.delta import Delta, Interest, TooFarBehind, read_delta, union
from controlplane.telemetry.live import run_topic

logger = logging.getLogger(__name__)

FRAME_S = 0.25
"""At most four frames a second."""
LOOK_S = 5.0
"""Without any notice a watched run is looked at this often: a lost notice costs no more."""
RECONNECT_S = 0.5
READERS = 2
"""Database connections that live reading uses at once in this process."""


class Outbox(Protocol):
    """Where a socket takes what is for it; nothing here waits for a slow client."""

    def frame(self, run: UUID, delta: Delta) -> None: ...

    def reset(self, run: UUID) -> None: ...

    def changed(self, topic: str, id: str) -> None: ...


@dataclass(frozen=True)
class Member:
    """One subscription of one socket to one run. With `watched` episodes it is told that they changed, else it gets frames."""

    outbox: Outbox
    interest: Interest

    def deliver(self, run: UUID, delta: Delta) -> None:
        if not self.interest.watched:
            self.outbox.frame(run, delta.seen_by(self.interest))
            return
        for episode in delta.episodes:
            if UUID(episode["id"]) in self.interest.watched:
                self.outbox.changed("episode", episode["id"])

    def fell_behind(self, run: UUID) -> None:
        """Too much happened to tell in a frame: read it again."""
        if not self.interest.watched:
            return self.outbox.reset(run)
        for episode in self.interest.watched:
            self.outbox.changed("episode", str(episode))


class Room:
    """The members that watch one run, all at the same cursor."""

    def __init__(self, run: UUID, read: Callable[..., Awaitable[Delta | None]]):
        self.run, self.read = run, read
        self.members: dict[object, Member] = {}
        self.cursor: int | None = None
        self.events_seen: set[int] = set()
        self.changed = asyncio.Event()
        self.lock = asyncio.Lock()
        self.joining = 0
        self.task = asyncio.create_task(self._watch())

    async def join(self, key: object, member: Member, cursor: int | None) -> None:
        """Send what the member missed since `cursor`, then let it take part. A member that is too far behind is told to reset."""
        self.joining += 1
        try:
            async with self.lock:
                await self._admit(key, member, cursor)
        except (TooFarBehind, Run.DoesNotExist):
            member.fell_behind(self.run)
        finally:
            self.joining -= 1
        # What came between the room's cursor and this member's reading is sent to it twice, which is harmless.
        self.changed.set()

    async def _admit(self, key: object, member: Member, cursor: int | None) -> None:
        delta = await self.read(self.run, cursor, member.interest)
        if delta:
            member.deliver(self.run, delta)
        if not self.members:
            self.cursor, self.events_seen = (delta.cursor if delta else cursor), set()
        self.members[key] = member

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.joining

    def leave(self, key: object) -> None:
        self.members.pop(key, None)

    async def _watch(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self.changed.wait(), LOOK_S)
            except TimeoutError:
                pass
            self.changed.clear()
            try:
                await self._look()
            except DatabaseError as error:
                logger.warning("live reading of run %s: %s", self.run, error)
            except Exception:
                # A watcher that ended would leave its pages silent.
                logger.exception("live reading of run %s", self.run)
            await asyncio.sleep(FRAME_S)

    async def _look(self) -> None:
        async with self.lock:
            if not self.members:
                return
            try:
                delta = await self.read(self.run, self.cursor, union(member.interest for member in self.members.values()))
            except TooFarBehind:
                return self._skip_to_now()
            except Run.DoesNotExist:
                return self.members.clear()
            if delta:
                self.cursor = delta.cursor
                self._share(delta)

    def _share(self, delta: Delta) -> None:
        newest = {event["id"] for event in delta.events}
        delta.events = [event for event in delta.events if event["id"] not in self.events_seen]
        # What a delta carries are always the newest events, so that older ones never come again.
        self.events_seen = newest or self.events_seen
        for member in self.members.values():
            member.deliver(self.run, delta)

    def _skip_to_now(self) -> None:
        for member in self.members.values():
            member.fell_behind(self.run)
        self.members = {key: member for key, member in self.members.items() if member.interest.watched}
        self.cursor = None


class Hub:
    """All rooms and list watchers of this process's event loop, and the one connection on which notices arrive."""

    def __init__(self):
        self.rooms: dict[UUID, Room] = {}
        self.watchers: dict[str, dict[Outbox, str]] = {}
        self.readers = asyncio.Semaphore(READERS)
        self.listener: asyncio.Task | None = None

    async def join(self, run: UUID, key: object, member: Member, cursor: int | None) -> None:
        self._listen()
        if run not in self.rooms:
            self.rooms[run] = Room(run, self._read)
        await self.rooms[run].join(key, member, cursor)
        self._tidy()

    def leave(self, run: UUID, key: object) -> None:
        if room := self.rooms.get(run):
            room.leave(key)
        self._tidy()

    def watch(self, topic: str, outbox: Outbox, name: str) -> None:
        """Tell `outbox` that the list called `name` changed whenever `topic` is heard; and now: it may have changed since it was read."""
        self._listen()
        self.watchers.setdefault(topic, {})[outbox] = name
        outbox.changed(name, "")

    def unwatch(self, topic: str, outbox: Outbox) -> None:
        self.watchers.get(topic, {}).pop(outbox, None)
        if not self.watchers.get(topic):
            self.watchers.pop(topic, None)
        self._tidy()

    async def _read(self, run: UUID, cursor: int | None, interest: Interest) -> Delta | None:
        async with self.readers:
            return await database_sync_to_async(read_delta, thread_sensitive=False)(run, cursor, interest)

    def _tidy(self) -> None:
        for run in [run for run, room in self.rooms.items() if room.is_empty]:
            self.rooms.pop(run).task.cancel()
        if not self.rooms and not self.watchers and self.listener:
            self.listener.cancel()
            self.listener = None

    # ------------------------------------------------------------ notices
    def _listen(self) -> None:
        if self.listener is None:
            self.listener = asyncio.create_task(self._hear_for_ever())

    async def _hear_for_ever(self) -> None:
        while True:
            try:
                await self._hear()
            except (redis.RedisError, OSError) as error:
                logger.warning("live notices: %s", error)
            await asyncio.sleep(RECONNECT_S)

    async def _hear(self) -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, health_check_interval=15)
        async with client, client.pubsub() as channel:
            await channel.psubscribe("assay:*")
            # Whatever was said before we listened is caught up with.
            self._everything_changed()
            async for message in channel.listen():
                if message["type"] == "pmessage":
                    self.hear(message["channel"].decode(), json.loads(message["data"]))

    def hear(self, topic: str, payload: dict) -> None:
        """A notice arrived."""
        for outbox, name in self.watchers.get(topic, {}).items():
            outbox.changed(name, payload.get("id", ""))
        if topic.startswith(run_topic("")) and (room := self.rooms.get(UUID(topic.removeprefix(run_topic(""))))):
            room.changed.set()

    def _everything_changed(self) -> None:
        for room in self.rooms.values():
            room.changed.set()
        for watchers in self.watchers.values():
            for outbox, name in watchers.items():
                outbox.changed(name, "")


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())
