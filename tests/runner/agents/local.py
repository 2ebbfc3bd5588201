"""A container's calls on a folder of this machine, for tests of what an agent does: no isolation at all."""

import asyncio
import os
import subprocess
from pathlib import Path

from runner.sandbox.base import ExecResult
from runner.sandbox.reasons import Reason, SandboxFailure


class LocalContainer:
    isolation = "weak"

    def __init__(self, root: Path):
        self.root, self.workdir, self.calls = root, str(root / "app"), []
        for name in ("app", "logs/agent", "logs/artifacts", "solution"):
            (root / name).mkdir(parents=True, exist_ok=True)

    @property
    def environment(self):
        roots = {"ASSAY_APP": "app", "ASSAY_LOGS": "logs", "ASSAY_SOLUTION": "solution"}
        return {**os.environ, **{name: str(self.root / folder) for name, folder in roots.items()}, "HOME": str(self.root)}

    async def exec(self, argv, *, timeout, env=None, user=None, workdir=None, output_cap=1 << 20, flood_limit=None):
        self.calls.append(list(argv))
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=self.workdir, env={**self.environment, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except FileNotFoundError:
            return ExecResult(127, b"", f"{argv[0]}: not found".encode(), 0.0)
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            process.kill()
            await process.wait()
            return ExecResult(None, b"", b"", timeout, timed_out=True)
        return ExecResult(process.returncode, out, err, 0.0)

    async def put(self, target, source):
        files = (
            source if isinstance(source, dict) else {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
        )
        for name, content in files.items():
            place = self.place(target) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)

    async def read(self, path, limit=1 << 20):
        try:
            return self.place(path).read_bytes()[:limit]
        except FileNotFoundError:
            raise SandboxFailure(Reason.PATH_MISSING, path) from None

    def place(self, path) -> Path:
        inside = str(path).startswith((str(self.root), "/tmp"))
        return Path(path) if inside else self.root / str(path).lstrip("/")
