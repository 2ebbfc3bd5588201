"""What happens when the engine itself is dead, wedged, restarted or out of addresses."""

import asyncio
import socket
import threading

import pytest

from runner.contract.termination import Termination
from runner.sandbox.base import ContainerSpec, Limits, Network
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.labels import EPISODE, HOUSE
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason, SandboxFailure
from tests.runner.sandbox import scratch
from tests.runner.sandbox.tasks import Nop, Shell, write_task

pytestmark = pytest.mark.docker


async def test_an_engine_that_is_not_there_is_named(tmp_path):
    backend = DockerBackend({HOUSE: "h"}, f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(SandboxFailure, match="start dockerd") as caught:
        await backend.open()
    assert caught.value.reason is Reason.DAEMON_UNREACHABLE
    health = await backend.health()
    assert health.reason is Reason.DAEMON_UNREACHABLE and health.containers is None
    await backend.close()


async def test_an_engine_that_takes_requests_and_never_answers_is_wedged(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.sandbox.docker_backend.ENGINE_TIMEOUT", 1.0)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    held = []
    threading.Thread(target=lambda: [held.append(server.accept()) for _ in range(2)], daemon=True).start()
    backend = DockerBackend({HOUSE: "h"}, f"unix://{tmp_path}/s")
    with pytest.raises(SandboxFailure) as caught:
        await backend.open()
    assert caught.value.reason is Reason.DAEMON_WEDGED
    await backend.close()
    server.close()


async def test_exhausted_address_pools_are_named_and_leave_nothing(private_node, tmp_path):
    backend = private_node.backend
    spec = ContainerSpec(scratch.IMAGE, Limits(memory_mb=64), network=Network.PUBLIC, labels={EPISODE: "other"})
    others = [await backend.create(spec) for _ in range(2)]
    runner = EpisodeRunner(private_node, tmp_path / "jobs", keep_images=False)
    task = write_task(tmp_path / "task", environment='network_mode = "public"\nmemory_mb = 64')
    result = await runner.run(task, Nop(), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.ROLLOUT_ERROR, Reason.ADDRESS_POOL_EXHAUSTED, None)
    assert "default-address-pools" in result.detail
    assert await backend.attached({EPISODE: "e"}) == []
    for other in others:
        await other.remove()
    assert (await runner.run(task, Shell(), episode="f")).score == 1.0


async def test_a_restart_of_the_engine_under_an_agent(private_engine, private_node, tmp_path):
    class Restarting(Nop):
        async def run(self, container, task, budget):
            waiting = asyncio.create_task(container.exec(["sleep", "60"], timeout=60))
            await asyncio.sleep(1)
            await asyncio.to_thread(private_engine.stop)
            await asyncio.to_thread(private_engine.start)
            await waiting
            return Termination.FINISHED

    runner = EpisodeRunner(private_node, tmp_path / "jobs", keep_images=False)
    task = write_task(tmp_path / "task")
    result = await runner.run(task, Restarting(), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.INFRA_LOST, Reason.DAEMON_RESTARTED, None), result.detail
    assert (await runner.run(task, Shell(), episode="after")).score == 1.0


async def test_a_restart_of_the_engine_under_a_verifier_is_mended_by_a_regrade(private_engine, private_node, tmp_path):
    async def restart():
        await asyncio.sleep(1.5)
        await asyncio.to_thread(private_engine.stop)
        await asyncio.to_thread(private_engine.start)

    restarting = []

    def on_phase(event):
        if event.phase == "verifier" and not event.finished:
            restarting.append(asyncio.ensure_future(restart()))

    runner = EpisodeRunner(private_node, tmp_path / "jobs", on_phase=on_phase, keep_images=False)
    task = write_task(
        tmp_path / "task", "#!/bin/sh\nsleep 4\ncat /logs/artifacts/answer > /logs/verifier/reward.txt\n", verifier_timeout=60
    )
    result = await runner.run(task, Shell(), episode="e")
    await asyncio.gather(*restarting)
    assert result.verifier_reason is Reason.DAEMON_RESTARTED, result.detail
    assert (result.termination, result.score, result.regraded) == (Termination.FINISHED, 42.0, True)


async def test_an_engine_that_dies_and_stays_away_ends_the_episode_and_its_return_is_swept(private_engine, house, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.sandbox.docker_backend.RETURN_PATIENCE", 0.5)

    class Killing(Nop):
        async def run(self, container, task, budget):
            await asyncio.to_thread(private_engine.stop)
            await container.exec(["true"], timeout=5)

    backend = DockerBackend({HOUSE: house}, private_engine.host)
    async with Node(backend, tmp_path / "node", name="here") as node:
        runner = EpisodeRunner(node, tmp_path / "jobs", keep_images=False)
        try:
            result = await runner.run(write_task(tmp_path / "task"), Killing(), episode="e")
        finally:
            await asyncio.to_thread(private_engine.start)
        assert (result.termination, result.reason, result.score) == (Termination.INFRA_LOST, Reason.DAEMON_UNREACHABLE, None)
        assert len(await backend.attached({})) == 1
        assert (await node.reap()).containers == 1
