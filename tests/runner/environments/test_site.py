"""What a node is asked before container episodes run on it."""

from types import SimpleNamespace

import pytest

from runner.contract.run_config import HarborEnvironment as Settings
from runner.environments.site import Site, _engine_problems, _missing_images, house_name
from runner.repair.cache import TaskCache
from runner.sandbox.base import Health
from tests.runner.environments.test_harbor import PROCESS


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (Health("daemon_wedged", "ps hangs"), "is not well (daemon_wedged: ps hangs)"),
        (Health(None, list_seconds=25.0), "takes 25 s"),
        (Health(None, list_seconds=0.1, dangling_images=2001), "2001 images without a tag"),
    ],
)
def test_an_engine_that_would_hang_is_refused(health, told):
    (problem,) = _engine_problems("node-1", health)
    assert told in problem and "node-1" in problem


def test_a_healthy_engine_is_not():
    assert _engine_problems("node-1", Health(None, list_seconds=0.1, dangling_images=3)) == []


@pytest.mark.parametrize("backend", [PROCESS])
async def test_tasks_whose_files_are_missing_are_named(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("ASSAY_NODE_FOLDER", str(tmp_path))
    site = Site(Settings(backend=backend), TaskCache(tmp_path / "cache"), tmp_path / "jobs", "test-house", "a")
    (problem,) = await site.problems(["f" * 64])
    assert "E13" in problem


async def test_a_base_image_that_was_not_built_here_is_named_with_what_builds_it(tmp_path):
    for part, base in (("environment", "assay-sandbox-base:aaa AS prep"), ("tests", "assay-sandbox-base:bbb")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "Dockerfile").write_text(f"FROM {base}\nRUN true\n")

    async def image(tag: str) -> str | None:
        return "sha256:1" if tag == "assay-sandbox-base:aaa" else None

    found = await _missing_images(SimpleNamespace(name="node-1", backend=SimpleNamespace(image=image)), [tmp_path])
    assert found == ["node node-1 has no image assay-sandbox-base:bbb; run docker/sandbox-base.sh there"]


def test_a_house_is_named_after_its_storage(tmp_path):
    assert house_name(tmp_path / "runs") == house_name(tmp_path / "x" / ".." / "runs") != house_name(tmp_path)
