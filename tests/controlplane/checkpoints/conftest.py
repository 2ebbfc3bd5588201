import hashlib
import json

import pytest

from runner.contract.canonical import canonical_bytes
from tests.controlplane.factories import make_attempt, make_run

CONFIG = {"checkpoints": {"keep_last": 2, "keep_best": True, "every_steps": 1}, "max_attempts": 3}


@pytest.fixture(autouse=True)
def storage_folder(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return tmp_path


@pytest.fixture
def run(team):
    return make_run(team, config=json.dumps(CONFIG).encode())


@pytest.fixture
def attempt(run):
    return make_attempt(run)


@pytest.fixture
def write(run, storage_folder):
    """write(step, **files) → (folder, manifest) of a whole checkpoint on disk, as the runner writes it."""

    def write(step, **files):
        folder = storage_folder / "runs" / str(run.pk) / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        contents = {"weights.bin": b"weights" * 100, "sub/state.json": b"{}", **files}
        entries = []
        for name, content in sorted(contents.items()):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
            entries.append({"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        manifest = {"step": step, "stage": 0, "topology": {"learners": 1}, "files": entries}
        (folder / "manifest.json").write_bytes(canonical_bytes(manifest))
        return folder, manifest

    return write
