"""What happens when the engine itself is dead, wedged, restarted or out of addresses."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import requests
from docker.errors import APIError

from runner.contract.termination import Termination
from runner.environments.site import _missing_networks
from runner.sandbox.base import ContainerSpec, Limits, Network
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.docker_sweeps import remove_labelled
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


async def test_too_few_networks_are_told_before_any_is_made(private_node):
    assert await private_node.backend.free_networks() == 2
    assert await _missing_networks(private_node, 2) == []
    network = private_node.backend.engine.create_network("taken", driver="bridge")["Id"]
    try:
        (problem,) = await _missing_networks(private_node, 2)
        assert "has 1 networks left and 2 episodes at once take 2" in problem and "default-address-pools" in problem
    finally:
        private_node.backend.engine.remove_network(network)


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


# While its image is built, while its container is made, while its check runs.
@pytest.mark.parametrize("delay", [0.08, 0.5, 0.9, 2.5])
async def test_a_restart_of_the_engine_under_a_verifier_is_mended_by_a_regrade(private_engine, private_node, tmp_path, delay):
    async def restart():
        await asyncio.sleep(delay)
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
    # The builder's own container outlives an engine that goes in the middle of a step; no episode owns it, so that the reaper takes it.
    await private_node.reap()


async def test_what_an_engine_refuses_with_on_its_way_out_is_a_restart(private_engine, private_node, tmp_path, monkeypatch):
    """Seen once in many restarts: asked for a container after it had closed its store, the engine said 'database not open' and went."""
    engine = private_node.backend.engine
    create, restarts = engine.create_container, []

    def restart():
        time.sleep(0.3)
        private_engine.stop()
        private_engine.start()

    def refuse_once(**config):
        if restarts:
            return create(**config)
        restarts.append(threading.Thread(target=restart))
        restarts[0].start()
        response = requests.Response()
        response.status_code = 500
        raise APIError("500 Server Error", response=response, explanation="database not open")

    runner = EpisodeRunner(private_node, tmp_path / "jobs", keep_images=False)
    task = write_task(tmp_path / "task")
    monkeypatch.setattr(engine, "create_container", refuse_once)
    result = await runner.run(task, Shell(), episode="e")
    await asyncio.to_thread(restarts[0].join)
    assert (result.termination, result.reason) == (Termination.INFRA_LOST, Reason.DAEMON_RESTARTED), result.detail
    assert (await runner.run(task, Shell(), episode="after")).score == 1.0


async def test_an_error_of_an_engine_that_stays_is_the_tasks_own(private_engine, private_node, tmp_path, monkeypatch):
    response = requests.Response()
    response.status_code = 500

    def refuse(**config):
        raise APIError("500 Server Error", response=response, explanation="no such runtime")

    monkeypatch.setattr(private_node.backend.engine, "create_container", refuse)
    result = await EpisodeRunner(private_node, tmp_path / "jobs", keep_images=False).run(
        write_task(tmp_path / "task"), Shell(), episode="e"
    )
    assert (result.reason, result.score) == (Reason.START_FAILED, None), result.detail


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


def test_what_a_forgotten_build_left_is_removed_and_a_running_build_is_not_touched():
    gone = []
    listed = {"left": ({}, "exited"), "building": ({}, "running"), "living": ({EPISODE: "a"}, "running"), "dead": ({EPISODE: "b"}, "running")}
    engine = SimpleNamespace(
        containers=lambda **_: [{"Id": name, "Labels": labels, "State": state} for name, (labels, state) in listed.items()],
        networks=lambda **_: [],
        remove_container=lambda identifier, **_: gone.append(identifier),
    )
    remove_labelled(engine, {"assay.house": "h"}, {"": True, "a": True, "b": False}.get)
    assert gone == ["left", "dead"]
    gone.clear()
    remove_labelled(engine, {"assay.house": "h"}, lambda episode: False)
    assert gone == ["left", "building", "living", "dead"]
