"""/ws/live through the whole ASGI application, on a real broker and committed rows: who may watch, what arrives, that no gap stays."""

import asyncio
import json
import math
import uuid

import pytest
import redis
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.conf import settings
from django.test import Client

from controlplane.asgi import application
from controlplane.runs.models import Attempt, Run, RunEvent
from controlplane.telemetry import consumers, delta, hub, live
from controlplane.telemetry.services import accept_batch, next_seq
from tests.controlplane.factories import make_attempt, make_batch

pytestmark = pytest.mark.django_db(transaction=True)


def send_batch(attempt, sequence, series=None, **parts):
    return accept_batch(Attempt.objects.select_related("run__project").get(pk=attempt.pk), make_batch(sequence, series, **parts))


deliver = database_sync_to_async(send_batch)


def cookie_of(user) -> bytes:
    client = Client()
    client.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()


class Page:
    """A browser page with its socket: ASGI messages into the application and out of it."""

    def __init__(self, user=None, origin=b"http://127.0.0.1:8000", cookie=None):
        self.user, self.origin, self.cookie = user, origin, cookie

    async def __aenter__(self):
        headers = [(b"origin", self.origin), (b"host", b"127.0.0.1:8000")]
        if self.user:
            self.cookie = await sync_to_async(cookie_of)(self.user)
        if self.cookie:
            headers.append((b"cookie", self.cookie))
        scope = {"type": "websocket", "path": "/ws/live", "query_string": b"", "headers": headers, "subprotocols": []}
        self.socket = ApplicationCommunicator(application, scope)
        await self.socket.send_input({"type": "websocket.connect"})
        self.connected = (await self.socket.receive_output(timeout=5))["type"] == "websocket.accept"
        return self

    async def __aexit__(self, *_):
        if not self.socket.future.done():
            await self.socket.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.socket.wait(timeout=5)

    async def send(self, text=None, data=None):
        await self.socket.send_input({"type": "websocket.receive", "text": text, "bytes": data})

    async def say(self, **message):
        await self.send(json.dumps(message))

    async def watch(self, run, cursor=0, series=(), **options):
        topic = {"topic": "run", "run": str(run.pk), "cursor": cursor, "series": list(series), **options}
        await self.say(type="subscribe", topics=[topic])

    async def hear(self, timeout=5):
        output = await self.socket.receive_output(timeout=timeout)
        assert output["type"] == "websocket.send", output
        return json.loads(output["text"])

    async def hear_until(self, enough, timeout=10):
        """Messages until `enough(messages)`."""
        messages = []
        async with asyncio.timeout(timeout):
            while not enough(messages):
                messages.append(await self.hear(timeout))
        return messages

    async def points_of(self, name, steps):
        """Hear until every step of `steps` arrived; returns {step: value}."""
        found = {}

        def enough(messages):
            for message in messages[-1:]:
                assert message["type"] == "frame", message
                found.update({row[1]: row[2] for row in message["points"].get(name, ())})
            return set(steps) <= set(found)

        await self.hear_until(enough)
        return found


class TestWhoMayWatch:
    async def test_a_stranger_is_sent_away(self, run):
        async with Page() as page:
            assert page.connected
            assert await page.socket.receive_output() == {"type": "websocket.close", "code": consumers.NOT_SIGNED_IN}

    async def test_another_origin_is_refused(self, owner):
        async with Page(owner, origin=b"http://evil.example") as page:
            assert not page.connected

    async def test_another_teams_run_is_refused_and_stays_silent(self, run, attempt, outsider):
        async with Page(outsider) as page:
            await page.watch(run, series=["loss"])
            answer = await page.hear()
            assert answer["type"] == "error" and str(run.pk) in answer["detail"]
            await deliver(attempt, 0, {"loss": [(1, 1.0)]})
            assert await page.socket.receive_nothing(timeout=1)

    async def test_a_run_that_does_not_exist_is_refused_alike(self, run, owner):
        async with Page(owner) as page:
            await page.say(type="subscribe", topics=[{"topic": "run", "run": str(uuid.uuid4())}])
            assert "there is none, or it is another team's" in (await page.hear())["detail"]

    async def test_another_teams_list_is_not_heard(self, run, attempt, outsider, owner):
        async with Page(outsider) as theirs, Page(owner) as ours:
            for page in (theirs, ours):
                await page.say(type="subscribe", topics=[{"topic": "runs"}])
            assert (await ours.hear_until(lambda said: bool(said)))[0]["topic"] == "runs"
            await theirs.hear_until(lambda said: bool(said))
            await deliver(attempt, 0, {"loss": [(1, 1.0)]})
            messages = await ours.hear_until(lambda said: any(message["ids"] for message in said))
            assert messages[-1] == {"type": "changed", "topic": "runs", "ids": [str(run.pk)]}
            # A list is also told to read itself again from time to time; that names nobody.
            if not await theirs.socket.receive_nothing(timeout=1.5):
                assert not any(message["ids"] for message in await theirs.hear_until(lambda said: bool(said)))

    async def test_a_disabled_user_is_disconnected(self, run, owner, monkeypatch):
        monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
        async with Page(owner) as page:
            await page.watch(run, cursor=None)
            await page.hear()
            owner.is_active = False
            await owner.asave()
            assert (await page.socket.receive_output(timeout=5))["code"] == consumers.NO_LONGER_ALLOWED


class TestWhatArrives:
    async def test_points_arrive_as_they_are_delivered(self, run, attempt, owner):
        async with Page(owner) as page:
            await page.watch(run, cursor=0, series=["loss"])
            await deliver(attempt, 0, {"loss": [(1, 0.5), (2, math.nan), (3, math.inf)], "other": [(1, 1.0)]})
            frame = await page.hear()
            assert frame["points"] == {"loss": [[1, 1, 0.5, 1001.0], [1, 2, "NaN", 1002.0], [1, 3, "Infinity", 1003.0]]}
            assert frame["names"] == ["loss", "other"]
            assert (frame["cursor"], frame["run_state"]["step"], frame["run"]) == (1, 3, str(run.pk))

    async def test_logs_and_episodes_come_only_to_those_who_asked(self, run, attempt, owner):
        line = {"t": 1.0, "component": "driver", "level": "info", "message": "hello"}
        episode = {"episode": str(uuid.uuid4()), "kind": "started", "ordinal": 0, "t": 1.0, "data": {"task": "t-1", "step": 3}}
        async with Page(owner) as asked, Page(owner) as silent:
            await asked.watch(run, logs=True, episodes=True)
            await silent.watch(run)
            await deliver(attempt, 0, {"loss": [(1, 1.0)]}, logs=[line], episodes=[episode])
            frame = await asked.hear()
            assert frame["logs"] == [{"id": frame["logs"][0]["id"], "attempt": 1, **line}]
            assert (frame["episodes"][0]["id"], frame["episodes"][0]["score"]) == (episode["episode"], None)
            other = await silent.hear()
            assert (other["logs"], other["episodes"]) == ([], [])

    async def test_events_arrive_once(self, run, attempt, owner):
        async with Page(owner) as page:
            await page.watch(run)
            for sequence in range(2):
                await deliver(attempt, sequence, events=[{"t": 1.0, "kind": "note", "data": {"text": f"note {sequence}"}}])
            frames = await page.hear_until(lambda said: sum(len(message["events"]) for message in said) >= 2)
            assert [event["data"]["text"] for frame in frames for event in frame["events"]] == ["note 0", "note 1"]

    async def test_a_change_of_the_control_plane_arrives(self, run, owner, django_db_blocker):
        def stop():
            from django.db import transaction

            with transaction.atomic():
                seq = next_seq(run.pk)
                Run.objects.filter(pk=run.pk).update(waiting="needs 2 GPUs")
                RunEvent.objects.create(run=run, kind="run_state", data={"to": "queued"}, at=run.created_at)
                live.notify_run(run.pk, seq)

        async with Page(owner) as page:
            await page.watch(run)
            await database_sync_to_async(stop)()
            frame = await page.hear()
            assert frame["run_state"]["waiting"] == "needs 2 GPUs"
            assert frame["events"][0]["kind"] == "run_state"

    async def test_an_episode_page_hears_of_its_episode_alone(self, run, attempt, owner):
        ids = [str(uuid.uuid4()) for _ in range(2)]
        events = [{"episode": id, "kind": "started", "ordinal": 0, "t": 1.0, "data": {"task": "t"}} for id in ids]
        await deliver(attempt, 0, episodes=events)
        async with Page(owner) as page:
            await page.say(type="subscribe", topics=[{"topic": "episode", "episode": ids[0]}])
            await page.say(type="ping")
            assert (await page.hear())["type"] == "pong"
            turn = {"kind": "turn", "ordinal": 0, "t": 2.0, "data": {"index": 0, "role": "user", "author": "environment", "text": "?"}}
            await deliver(attempt, 1, episodes=[{"episode": ids[1], **turn}])
            await deliver(attempt, 2, episodes=[{"episode": ids[0], **turn}])
            assert await page.hear() == {"type": "changed", "topic": "episode", "ids": [ids[0]]}

    async def test_the_cluster_page_hears(self, owner):
        async with Page(owner) as page:
            await page.say(type="subscribe", topics=[{"topic": "cluster"}])
            await page.hear()
            await database_sync_to_async(live.notify_cluster)()
            assert (await page.hear())["topic"] == "cluster"

    async def test_after_unsubscribing_nothing_comes(self, run, attempt, owner):
        async with Page(owner) as page:
            await page.watch(run, series=["loss"])
            await deliver(attempt, 0, {"loss": [(1, 1.0)]})
            await page.hear()
            await page.say(type="unsubscribe", topics=[{"topic": "run", "run": str(run.pk)}])
            await deliver(attempt, 1, {"loss": [(2, 1.0)]})
            assert await page.socket.receive_nothing(timeout=1)
            assert hub.hub().rooms == {}

    async def test_frames_are_at_most_four_a_second(self, run, attempt, owner):
        async with Page(owner) as page:
            await page.watch(run, series=["loss"])
            clock = asyncio.get_running_loop().time
            times, found = [], set()

            async def feed():
                for sequence in range(40):
                    await deliver(attempt, sequence, {"loss": [(sequence, 1.0)]})

            feeding = asyncio.create_task(feed())
            while len(found) < 40:
                frame = await page.hear()
                times.append(clock())
                found |= {row[1] for row in frame["points"].get("loss", ())}
            await feeding
            assert all(later - earlier > 0.2 for earlier, later in zip(times, times[1:], strict=False))


class TestNoGapStays:
    async def test_a_page_catches_up_from_its_cursor(self, run, attempt, owner):
        for sequence in range(5):
            await deliver(attempt, sequence, {"loss": [(sequence, float(sequence))]})
        async with Page(owner) as page:
            await page.watch(run, cursor=2, series=["loss"])
            assert await page.points_of("loss", [2, 3, 4]) == {2: 2.0, 3: 3.0, 4: 4.0}

    async def test_sockets_that_break_all_the_time_miss_nothing(self, run, attempt, owner):
        """The page is cut off again and again, frames it was sent are lost with it; from its last cursor it still gets every point."""
        total, found, cursor = 60, {}, 0

        async def feed():
            for sequence in range(total):
                await deliver(attempt, sequence, {"loss": [(sequence, float(sequence))], "late": [(total - sequence, 1.0)]})
                await asyncio.sleep(0.01)

        feeding = asyncio.create_task(feed())
        async with asyncio.timeout(60):
            while len(found) < total:
                async with Page(owner) as page:
                    await page.watch(run, cursor=cursor, series=["loss", "late"])
                    frame = await page.hear()
                    found.update({row[1]: row[2] for row in frame["points"].get("loss", ())})
                    cursor = frame["cursor"]
                    # The next frames are on their way when the socket dies.
                    await asyncio.sleep(0.05)
        await feeding
        assert found == {step: float(step) for step in range(total)}

    async def test_a_lost_notice_costs_seconds(self, run, attempt, owner, monkeypatch):
        monkeypatch.setattr(hub, "LOOK_S", 0.5)
        async with Page(owner) as page:
            await page.watch(run, series=["loss"])
            monkeypatch.setattr(live, "_publish", lambda *_: None)
            await deliver(attempt, 0, {"loss": [(1, 1.0)]})
            assert await page.points_of("loss", [1]) == {1: 1.0}

    async def test_a_broker_that_drops_its_clients_is_found_again(self, run, attempt, owner, monkeypatch):
        monkeypatch.setattr(hub, "LOOK_S", 60.0)
        async with Page(owner) as page:
            await page.watch(run, series=["loss"])
            await deliver(attempt, 0, {"loss": [(1, 1.0)]})
            await page.points_of("loss", [1])
            killed = redis.Redis.from_url(settings.REDIS_URL).client_kill_filter(_type="pubsub")
            assert killed >= 1
            await deliver(attempt, 1, {"loss": [(2, 2.0)]})
            assert await page.points_of("loss", [2]) == {2: 2.0}

    async def test_hidden_steps_of_an_old_attempt_are_not_sent(self, run, attempt, owner):
        await database_sync_to_async(Attempt.objects.filter(pk=attempt.pk).update)(state="lost", first_step=0)
        second = await database_sync_to_async(make_attempt)(run, 2, first_step=5)
        async with Page(owner) as page:
            await page.watch(run, series=["loss"])
            await deliver(attempt, 0, {"loss": [(4, 4.0), (5, 50.0), (9, 90.0)]})
            await deliver(second, 1, {"loss": [(5, 5.0)]}, emitter="second")
            assert await page.points_of("loss", [4, 5]) == {4: 4.0, 5: 5.0}

    async def test_who_is_too_far_behind_is_reset_and_may_subscribe_again(self, run, attempt, owner, monkeypatch):
        monkeypatch.setattr(delta, "MAX_POINTS", 10)
        await deliver(attempt, 0, {"loss": [(step, 1.0) for step in range(50)]})
        async with Page(owner) as page:
            await page.watch(run, cursor=0, series=["loss"])
            assert await page.hear() == {"type": "reset", "run": str(run.pk)}
            await page.watch(run, cursor=1, series=["loss"])
            await deliver(attempt, 1, {"loss": [(50, 2.0)]})
            assert await page.points_of("loss", [50]) == {50: 2.0}

    async def test_a_cursor_from_the_future_is_reset(self, run, attempt, owner):
        async with Page(owner) as page:
            await page.watch(run, cursor=99)
            assert (await page.hear())["type"] == "reset"

    def test_a_slow_client_is_reset_not_buffered_for_ever(self, monkeypatch):
        monkeypatch.setattr(consumers, "MAX_PENDING_ROWS", 25)
        outbox, run, dropped = consumers.SocketOutbox(), uuid.uuid4(), []
        outbox.on_reset = dropped.append
        for cursor in range(3):
            outbox.frame(run, delta.Delta(cursor, {}, points={"loss": [[1, step, 0.0, 0.0] for step in range(10)]}))
        assert dropped == [run]
        assert outbox.take(True) == [{"type": "reset", "run": str(run)}]

    def test_unsent_frames_of_one_socket_do_not_reach_another(self):
        shared = delta.Delta(1, {}, points={"loss": [[1, 1, 0.0, 0.0]]})
        interest, run = delta.Interest(frozenset(["loss"])), uuid.uuid4()
        slow, quick = consumers.SocketOutbox(), consumers.SocketOutbox()
        for outbox in (slow, quick):
            outbox.frame(run, shared.seen_by(interest))
        quick.take(False)
        slow.frame(run, delta.Delta(2, {}, points={"loss": [[1, 2, 0.0, 0.0]]}))
        quick.frame(run, delta.Delta(2, {}, points={"loss": [[1, 2, 0.0, 0.0]]}))
        assert [row[1] for row in slow.take(False)[0]["points"]["loss"]] == [1, 2]
        assert [row[1] for row in quick.take(False)[0]["points"]["loss"]] == [2]


class TestMalformedMessages:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "not json",
            "[]",
            "null",
            "{}",
            '{"type":"launch"}',
            '{"type":"subscribe"}',
            '{"type":"subscribe","topics":[{"topic":"run"}]}',
            '{"type":"subscribe","topics":[{"topic":"run","run":"x"}]}',
            '{"type":"subscribe","topics":[{"topic":"secrets"}]}',
            '{"type":"subscribe","topics":[{"topic":"run","run":"6a1c0c3e-4b7e-4f7e-8f5b-0d8a6c1b2a11","cursor":-1}]}',
            '{"type":"ping","extra":1}',
            "[" * 2000,
        ],
    )
    async def test_they_are_answered_and_the_socket_lives_on(self, owner, text):
        async with Page(owner) as page:
            await page.send(text=text)
            assert (await page.hear())["type"] == "error"
            await page.say(type="ping")
            assert await page.hear() == {"type": "pong"}

    async def test_bytes_are_answered(self, owner):
        async with Page(owner) as page:
            await page.send(data=b"\xff\x00")
            assert "JSON text" in (await page.hear())["detail"]

    async def test_a_message_too_long_is_answered(self, owner):
        async with Page(owner) as page:
            await page.send(text=json.dumps({"type": "ping", "x": "y" * consumers.MAX_MESSAGE}))
            assert "at most" in (await page.hear())["detail"]
