"""Taking over a run that was driven without a control plane."""

import json
import subprocess
from pathlib import Path

import pytest

from controlplane.cli import commands
from controlplane.runs.models import Run
from tests.controlplane.api.test_launch import DOCUMENT
from tests.controlplane.runs.conftest import make_bank


@pytest.fixture(autouse=True)
def storage_folder(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path / "storage"


@pytest.fixture
def driven(tmp_path, team):
    """The folder of a run that was driven by hand."""
    make_bank(team)
    attempt = tmp_path / "driven" / "attempts" / "1"
    (attempt / "spool" / "driver-1").mkdir(parents=True)
    (attempt / "spool" / "driver-1" / "000000.log").write_bytes(b"records")
    (attempt / "exit.json").write_text(json.dumps({"outcome": "succeeded", "reason": "", "step": 3, "at": 1_700_000_000.0}))
    (tmp_path / "driven" / "run.json").write_text(json.dumps(DOCUMENT))
    return tmp_path / "driven"


def test_a_run_driven_elsewhere_is_taken_over_and_a_copy_of_its_spool_replayed(assay, driven, monkeypatch):
    seen = {}

    def replay(argv, check):
        folder = Path(argv[-1])
        seen["connection"] = json.loads((folder / "connection.json").read_text())
        seen["mode"] = (folder / "connection.json").stat().st_mode & 0o777
        seen["spool"] = (folder / "spool" / "driver-1" / "000000.log").read_bytes()
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(commands.subprocess, "run", replay)
    code, out, _ = assay("adopt", str(driven))
    run = Run.objects.get()
    assert code == 0 and out.startswith(str(run.pk)) and run.state == "succeeded"
    assert seen["spool"] == b"records" and seen["mode"] == 0o600
    assert seen["connection"]["url"].endswith(f"/api/ingest/{run.attempts.get().pk}/batches")
    assert (driven / "attempts" / "1" / "spool" / "driver-1" / "000000.log").exists()


def test_a_replay_that_broke_off_goes_on_with_the_same_run(assay, driven, monkeypatch):
    codes = iter([1, 0])
    monkeypatch.setattr(commands.subprocess, "run", lambda argv, check: subprocess.CompletedProcess(argv, next(codes)))
    code, _, err = assay("adopt", str(driven))
    run = Run.objects.get()
    assert code == 1 and err.strip().endswith(f"--run {run.pk}")
    assert assay("adopt", str(driven), "--run", str(run.pk))[0] == 0
    assert Run.objects.get() == run


def test_a_run_that_went_on_in_a_second_attempt_is_refused(assay, driven):
    again = driven / "attempts" / "2"
    again.mkdir()
    (again / "exit.json").write_text("{}")
    code, _, err = assay("adopt", str(driven))
    assert code == 1 and "2 ended attempts" in err and not Run.objects.exists()
