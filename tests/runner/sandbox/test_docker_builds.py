"""Builds and sweeps against a real engine."""

import asyncio
import time

import pytest

from runner.sandbox.archives import pack_context
from runner.sandbox.base import ContainerSpec, Limits, Network
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.labels import EPISODE, HOUSE, NODE, TASK
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason, SandboxFailure
from tests.runner.sandbox import scratch

pytestmark = pytest.mark.docker


def context(folder, dockerfile):
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return pack_context(folder)


@pytest.fixture
def node(private_node):
    """Sweeps and leftovers of builds are counted: nobody else may build on the same engine."""
    return private_node


@pytest.fixture
def scratch_image():
    return scratch.IMAGE


async def build(node, folder, dockerfile, tag, timeout=60.0):
    with context(folder, dockerfile) as packed:
        return await node.backend.build(packed, tag, labels={TASK: "d"}, timeout=timeout)


@pytest.fixture
def tag(house):
    return f"assay-test/{house}:agent"


def images(node):
    return {item["Id"] for item in node.backend.engine.images(all=True)}


async def test_a_build_is_tagged_and_labelled(node, scratch_image, house, tag, tmp_path):
    identifier = await build(node, tmp_path / "c", f"FROM {scratch_image}\nCOPY . /app\n", tag)
    assert await node.backend.image(tag) == identifier
    labels = node.backend.engine.inspect_image(tag)["Config"]["Labels"]
    assert labels[HOUSE] == house and labels[TASK] == "d"
    await node.backend.remove_image(tag)
    assert await node.backend.image(tag) is None


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ("RUN echo {unique} > /one\nRUN echo seen; exit 7", "seen"),
        ("RUN echo {unique} > /one\nCOPY missing /x", "missing"),
        ("NONSENSE", "NONSENSE"),
    ],
)
async def test_a_build_that_fails_says_why_and_leaves_nothing(node, scratch_image, house, tag, tmp_path, steps, named):
    before = images(node)
    dockerfile = f"FROM {scratch_image}\n{steps.format(unique=house)}\n"
    with pytest.raises(SandboxFailure, match=named) as caught:
        await build(node, tmp_path / "c", dockerfile, tag)
    assert caught.value.reason is Reason.BUILD_FAILED
    assert await node.backend.image(tag) is None and images(node) <= before


async def test_a_base_image_made_a_moment_ago_survives_a_failed_build(node, scratch_image, house, tag, tmp_path):
    base = f"assay-test/base-{house}:new"
    await build(node, tmp_path / "a", f"FROM {scratch_image}\nRUN echo {house} > /one\n", base)
    with pytest.raises(SandboxFailure, match="exit|code|status|7"):
        await build(node, tmp_path / "b", f"FROM {base}\nRUN exit 7\n", tag)
    assert await node.backend.image(base)
    await node.backend.remove_image(base)


async def test_a_build_is_cut_off_at_its_time(node, scratch_image, house, tag, tmp_path):
    before, started = images(node), time.monotonic()
    dockerfile = f"FROM {scratch_image}\nRUN echo {house} > /one\nRUN sleep 120\n"
    with pytest.raises(SandboxFailure) as caught:
        await build(node, tmp_path / "c", dockerfile, tag, timeout=4)
    assert caught.value.reason is Reason.BUILD_TIMEOUT and time.monotonic() - started < 30
    assert await node.backend.image(tag) is None
    await eventually(lambda: images(node) <= before)
    await eventually(lambda: not sleeping(node))


async def test_cancelling_a_build_ends_it(node, scratch_image, house, tag, tmp_path):
    dockerfile = f"FROM {scratch_image}\nRUN sleep 121\n"
    building = asyncio.create_task(build(node, tmp_path / "c", dockerfile, tag))
    await eventually(lambda: sleeping(node, "121"))
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    await eventually(lambda: not sleeping(node, "121"))
    assert await node.backend.image(tag) is None


def sleeping(node, seconds="120"):
    return [item for item in node.backend.engine.containers() if f"sleep {seconds}" in item["Command"]]


async def eventually(condition, patience=20):
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.1)


async def test_the_reaper_takes_what_no_living_episode_owns(node, scratch_image):
    spec = ContainerSpec(scratch_image, Limits(memory_mb=64), network=Network.PUBLIC, labels={EPISODE: "dead"})
    await node.backend.create(spec)
    held = node.live.hold("living")
    living = await node.backend.create(ContainerSpec(scratch_image, Limits(memory_mb=64), labels={EPISODE: "living"}))
    swept = await node.reap()
    assert (swept.containers, swept.networks) == (1, 1)
    assert [labels[EPISODE] for labels in await node.backend.attached({})] == ["living"]
    await living.remove()
    held.release(remove=True)


async def test_a_node_sweeps_when_it_starts_and_while_it_runs(node, scratch_image, house, tmp_path):
    await node.backend.create(ContainerSpec(scratch_image, Limits(memory_mb=64), labels={EPISODE: "of a dead process"}))
    async with Node(
        DockerBackend({HOUSE: house, NODE: "here"}, node.backend.base_url), tmp_path / "node", name="here", reap_period=0.3
    ) as again:
        assert again.swept.containers == 1
        await again.backend.create(ContainerSpec(scratch_image, Limits(memory_mb=64), labels={EPISODE: "cancelled"}))
        deadline = time.monotonic() + 20
        while await again.backend.attached({}):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def test_other_houses_and_nodes_are_not_swept(node, scratch_image, tmp_path):
    other = DockerBackend({HOUSE: f"{node.backend.labels[HOUSE]}-other", NODE: "here"}, node.backend.base_url)
    await other.open()
    theirs = await other.create(ContainerSpec(scratch_image, Limits(memory_mb=64), labels={EPISODE: "theirs"}))
    assert (await node.reap()).containers == 0
    assert (await theirs.exec(["true"], timeout=10)).exit_code == 0
    await theirs.remove()
    await other.close()


async def test_dangling_images_go_by_age_in_batches(node, scratch_image, house, tag, tmp_path):
    """The tag moves on with every build; each image it leaves behind dangles."""
    made = [await build(node, tmp_path / "c", f"FROM {scratch_image}\nLABEL n={house}{index}\n", tag) for index in range(4)]
    await node.backend.sweep_images(older_than=3600)
    assert set(made) <= images(node)
    await node.backend.sweep_images(older_than=-1, batch=2)
    assert set(made) & images(node) == {made[-1]}
    await node.backend.remove_image(tag)
