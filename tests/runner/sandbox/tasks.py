"""Dense tasks of a few lines for the tests, and agents that deliver."""

import json
from collections.abc import Mapping
from pathlib import Path

from runner.contract.termination import Termination
from runner.sandbox.task import SandboxTask, load_task

BASE = "assay-test-scratch:latest"
PASSING = """#!/bin/sh
echo graded
if [ "$(cat /logs/artifacts/answer 2>/dev/null)" = 42 ]; then score=1.0; else score=0.0; fi
echo "{\\"reward\\": $score, \\"equivalence_pass\\": $score}" > /logs/verifier/reward.json
"""


def write_task(
    folder: Path,
    test: str = PASSING,
    *,
    name: str = "demo/answer",
    agent_timeout: float = 60,
    verifier_timeout: float = 60,
    dockerfile: str = f"FROM {BASE}\nWORKDIR /app\n",
    tests_dockerfile: str | None = f"FROM {BASE}\nCOPY . /tests\n",
    environment: str = 'network_mode = "no-network"\nmemory_mb = 128',
    verifier: str | None = "memory_mb = 128",
    extra: Mapping[str, str] | None = None,
) -> SandboxTask:
    """A dense task folder; `environment` and `verifier` are the lines of their tables, None leaves the verifier shared."""
    own = "" if verifier is None else f"[verifier.environment]\n{verifier}\n"
    manifest = (
        f'schema_version = "1.4"\n[task]\nname = "{name}"\n[environment]\n{environment}\n'
        f"[agent]\ntimeout_sec = {agent_timeout}\n[verifier]\ntimeout_sec = {verifier_timeout}\n{own}"
    )
    files = {"task.toml": manifest, "instruction.md": "Answer 42.\n", "environment/Dockerfile": dockerfile, "tests/test.sh": test}
    if tests_dockerfile is not None:
        files["tests/Dockerfile"] = tests_dockerfile
    for path, text in {**files, **(extra or {})}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (folder / "tests" / "test.sh").chmod(0o755)
    return load_task(folder)


class Nop:
    """Does nothing."""

    name = "nop"

    async def setup(self, container, task) -> None:
        pass

    async def run(self, container, task, budget) -> Termination:
        return Termination.FINISHED


class Shell(Nop):
    """Runs one shell script in the container."""

    name = "shell"

    def __init__(self, script: str = "echo 42 > /logs/artifacts/answer", ends: Termination = Termination.FINISHED):
        self.script, self.ends = script, ends

    async def run(self, container, task, budget) -> Termination:
        self.result = await container.exec(["sh", "-c", self.script], timeout=budget.seconds_left + 5)
        return self.ends


def rewards(values) -> str:
    """A verifier that writes these rewards as they are."""
    text = values if isinstance(values, str) else json.dumps(values)
    return f"#!/bin/sh\ncat > /logs/verifier/reward.json <<'END'\n{text}\nEND\n"
