"""Warming two nodes that share one engine, as two labels on it."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from runner.contract import warming
from runner.contract.termination import Termination
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.images import tag_of
from runner.sandbox.labels import EPISODE, HOUSE, NODE
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason
from runner.sandbox.warming import WarmingRefused, warm
from tests.runner.sandbox.tasks import Nop, write_task

pytestmark = pytest.mark.docker


@pytest.fixture
async def nodes(scratch_image, house, tmp_path):
    async with AsyncExitStack() as stack:
        made = []
        for name in ("one", "two"):
            backend = DockerBackend({HOUSE: house, NODE: name})
            made.append(await stack.enter_async_context(Node(backend, tmp_path / name, name=name)))
        yield made


@pytest.fixture
async def tasks(nodes, tmp_path, house):
    made = [write_task(tmp_path / f"task{index}", name=f"demo/t{index}", extra={"instruction.md": f"{house}{index}"}) for index in range(3)]
    yield made
    for task in made:
        for role in ("agent", "verifier"):
            await nodes[0].backend.remove_image(tag_of(task, role))


async def test_every_node_is_warmed_under_its_own_label_and_few_tasks_run_at_once(nodes, tasks, tmp_path):
    running, most, seen = 0, 0, []

    class Counting(Nop):
        async def run(self, container, task, budget):
            nonlocal running, most
            running += 1
            most = max(most, running)
            seen.append((container.labels[NODE], task.name))
            while most < 2:  # however slow the machine, the first waits for another
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
            running -= 1
            return Termination.FINISHED

    for node in nodes:
        found = await warm(EpisodeRunner(node, tmp_path / f"jobs-{node.name}"), tasks, Counting(), concurrency=2)
        assert found.warm and found.node == node.name and [task.passes for task in found.tasks] == [1, 1, 1]
        assert [task.score for task in found.tasks] == [0.0, 0.0, 0.0]
        assert json.loads((tmp_path / f"jobs-{node.name}" / "warmth.json").read_text())["warm"] is True
    assert most == 2
    assert {(node.name, task.name) for node in nodes for task in tasks} == set(seen)
    assert found.slowest_seconds < warming.WARM_SECONDS


async def test_what_was_cold_or_failed_is_repaired_once(nodes, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(warming, "WARM_SECONDS", 20.0)
    runs = []

    class Flaky(Nop):
        async def setup(self, container, task):
            runs.append(task.name)
            if task.name == tasks[1].name and runs.count(task.name) == 1:
                raise KeyError("only the first time")

    broken = write_task(tmp_path / "broken", "#!/bin/sh\nexit 1\n", name="demo/broken")
    runner = EpisodeRunner(nodes[0], tmp_path / "jobs", keep_images=False)
    found = await warm(runner, [*tasks, broken], Flaky())
    assert [task.passes for task in found.tasks] == [1, 2, 1, 2]
    assert [task.task for task in found.cold] == ["demo/broken"] and found.cold[0].reason.startswith(f"{Reason.REWARD_MISSING}: ")
    assert not found.warm


async def test_a_second_warming_of_a_node_is_refused_while_one_runs(nodes, tasks, tmp_path):
    runner = EpisodeRunner(nodes[0], tmp_path / "jobs")
    first = asyncio.create_task(warm(runner, tasks[:1], Nop()))
    while not await nodes[0].backend.attached({EPISODE: f"warm-1-{tasks[0].digest[:12]}"}):
        await asyncio.sleep(0.05)
    with pytest.raises(WarmingRefused, match="another warming"):
        await warm(runner, tasks[:1], Nop())
    assert (await first).warm
    assert (await warm(runner, tasks[:1], Nop())).warm


async def test_an_engine_that_is_not_well_is_not_warmed(nodes, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.sandbox.docker_backend.SLOW_LIST", -1.0)
    with pytest.raises(WarmingRefused, match="daemon_wedged"):
        await warm(EpisodeRunner(nodes[0], tmp_path / "jobs"), tasks, Nop())
