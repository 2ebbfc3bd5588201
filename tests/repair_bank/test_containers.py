"""The anchors in real containers, through the episode runner: one task of each environment and category."""

import json

import pytest

from runner.agents.anchors import Nop, Oracle
from runner.contract.repair import reward_key
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.node import Node
from runner.sandbox.task import load_task

TASKS = ["nbody-repair-sign-symplectic-reaction-sign-l48", "advdiff-accel-accel-transport-large-stream-each-face-*"]

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.usefixtures("base_image")]


@pytest.fixture
async def runner(tmp_path):
    backend = DockerBackend({"assay.house": "test-repair-bank", "assay.node": "n1"})
    async with Node(backend, tmp_path / "node", name="n1", slots=1) as node:
        yield EpisodeRunner(node, tmp_path / "jobs", keep_images=False)


@pytest.mark.parametrize("name", TASKS)
async def test_anchors_hold_in_containers(dense, runner, name):
    folder = next(dense.glob(f"*/*/*/{name}"))
    task = load_task(folder, reward_key(folder.parents[1].name))
    oracle = await runner.run(task, Oracle(), episode="oracle", attempt="1")
    assert oracle.score == 1.0 and oracle.rewards["equivalence_pass"] == 1, oracle.verifier_output
    nop = await runner.run(task, Nop(), episode="nop", attempt="1")
    assert (nop.score, nop.rewards["reward"], nop.graded) == (0.0, 0.0, True)
    assert nop.rewards["floor"] == json.loads((folder / "authoring" / "provenance.json").read_text())["funnel"]["floor"]
