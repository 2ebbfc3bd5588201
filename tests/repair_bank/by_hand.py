"""One episode of a dense task without containers: the scripts that the Dockerfiles run, in temporary folders."""

import json
import os
import shutil
import subprocess
from pathlib import Path

TIMEOUT_S = 300


class Desk:
    """What an agent's and a verifier's container would hold, under one folder."""

    def __init__(self, task: Path, folder: Path):
        self.folder, self.app, self.tests, self.logs = folder, folder / "app", folder / "tests", folder / "logs"
        for name in ("environment", "tests", "solution"):
            shutil.copytree(task / name, folder / name)
        self.app.mkdir()
        self.run("environment/prepare.sh")
        self.run("tests/prepare.sh")

    @property
    def tree(self) -> Path:
        return Path(self.run("app/tools/tree").stdout.strip())

    @property
    def delivered(self) -> Path:
        return self.logs / "artifacts" / "source"

    def run(self, script: str, check: bool = True) -> subprocess.CompletedProcess:
        roots = {"ASSAY_APP": self.app, "ASSAY_TESTS": self.tests, "ASSAY_LOGS": self.logs, "ASSAY_SOLUTION": self.folder / "solution"}
        env = os.environ | {name: str(path) for name, path in roots.items()}
        path = self.folder / script
        argv = ["sh", path] if path.suffix == ".sh" else [path]
        done = subprocess.run(argv, check=False, cwd=path.parent, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def grade(self) -> tuple[dict, dict]:
        """(reward.json, grading_report.json) of what lies in the artifacts now."""
        self.run("tests/test.sh")
        verifier = self.logs / "verifier"
        report = verifier / "grading_report.json"
        return json.loads((verifier / "reward.json").read_text()), json.loads(report.read_text()) if report.is_file() else {}
