import secrets
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import docker
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.labels import HOUSE, NODE
from runner.sandbox.node import Node
from tests.docker_engine import PrivateEngine
from tests.runner.sandbox import scratch


def load_scratch(base_url: str | None = None) -> bool:
    """Make the base image on an engine that lacks it; whether it did."""
    client = docker.APIClient(base_url=base_url) if base_url else docker.from_env().api
    name, _, tag = scratch.IMAGE.partition(":")
    if client.images(scratch.IMAGE):
        return False
    client.import_image_from_data(scratch.rootfs(), repository=name, tag=tag)
    return True


@pytest.fixture(scope="session")
def scratch_image(container_engine):
    made = load_scratch()
    yield scratch.IMAGE
    if made:
        docker.from_env().api.remove_image(scratch.IMAGE, force=True)


@pytest.fixture(scope="module")
def private_engine():
    """An engine beside the machine's own, for what would disturb others: sweeps, restarts, an address pool of two networks."""
    folder = Path(tempfile.mkdtemp(prefix="assay-engine-", dir="/tmp"))
    engine = PrivateEngine(folder, "--bip", "10.212.0.1/24", "--default-address-pool", "base=10.213.0.0/29,size=30")
    try:
        engine.start()
        load_scratch(engine.host)
        yield engine
    finally:
        engine.remove()


@pytest.fixture
def house():
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
async def node(scratch_image, house, tmp_path):
    async with clean_node(house, tmp_path) as node:
        yield node


@pytest.fixture
async def private_node(private_engine, house, tmp_path):
    async with clean_node(house, tmp_path, private_engine.host) as node:
        yield node


@asynccontextmanager
async def clean_node(house, folder, base_url=None):
    """A node of a house of its own; a test that leaves anything of that house behind fails."""
    backend = DockerBackend({HOUSE: house, NODE: "here"}, base_url)
    async with Node(backend, folder / "node", name="here", slots=4) as node:
        yield node
        left = await backend.attached({})
        await backend.remove_labelled({})
    assert left == []


@pytest.fixture
def runner(node, tmp_path):
    """Keeps no image, so that a test can say that none is left."""
    return EpisodeRunner(node, tmp_path / "jobs", keep_images=False)
