"""A terminal in a container: keystrokes in, screens out, through tmux and nothing else."""

import asyncio
import re
import uuid

from runner.sandbox.base import Container, ExecResult
from runner.sandbox.reasons import Reason, SandboxFailure

COLUMNS, ROWS = 160, 40
HISTORY_LINES = 10_000_000
LONGEST_KEYS = 16_000
CALL_SECONDS = 60.0
PROMPT_SECONDS = 5.0
SCREEN_BYTES = 4 << 20
# What tmux knows as a key rather than as text.
_NAMED = "Enter|Escape|Tab|BTab|Space|BSpace|Up|Down|Left|Right|Home|End|PageUp|PageDown"
_KEY = re.compile(rf"(?:[CMS]-)+(?:.|{_NAMED})|{_NAMED}|F\d{{1,2}}")


class SessionEnded(Exception):
    """The shell of the session is gone."""


class Tmux:
    """One detached session of a login shell. Its raw output goes to `log` below the container's /logs, which the model never sees."""

    def __init__(self, container: Container, log: str = "agent/terminal.pane"):
        self.container, self.log = container, log
        # A server of its own: on a laptop without containers the user may have one running.
        self.server = f"assay-{uuid.uuid4().hex[:12]}"
        self._seen: str | None = None

    async def start(self) -> None:
        """Raises SandboxFailure when tmux is missing: on a closed network it cannot be installed."""
        version = await self._run("tmux", "-V")
        if version.exit_code != 0:
            printed = version.output.strip()[:200] or "no output"
            told = f"tmux does not run in the agent's image ({printed}); install it in environment/Dockerfile"
            raise SandboxFailure(Reason.AGENT_SETUP_FAILED, told)
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        options = ["set-option", "-g", "history-limit", str(HISTORY_LINES), ";"]
        started = await self._tmux(*options, "new-session", "-d", *size, "-s", "main", "bash --login", env={"TERM": "xterm-256color"})
        if started.exit_code != 0:
            raise SandboxFailure(Reason.AGENT_SETUP_FAILED, f"the tmux session did not start: {started.output.strip()[:300]}")
        place = f'"${{ASSAY_LOGS:-/logs}}/{self.log}"'
        await self._tmux("pipe-pane", "-t", "main", "-o", f"mkdir -p $(dirname {place}); cat >> {place}")
        await self._until_prompt()

    async def _until_prompt(self) -> None:
        """A login shell takes a moment to say something; a silent one is not waited for."""
        for _ in range(int(PROMPT_SECONDS / 0.1)):
            if await self._capture():
                return
            await asyncio.sleep(0.1)

    async def type(self, keystrokes: str, seconds: float) -> None:
        """Type as written, then wait. Raises SessionEnded."""
        if len(keystrokes.encode()) > LONGEST_KEYS:
            await self._paste(keystrokes)
        elif keystrokes:
            literal = [] if _KEY.fullmatch(keystrokes) else ["-l"]
            await self._checked("send-keys", "-t", "main", *literal, "--", keystrokes)
        await asyncio.sleep(seconds)

    async def _paste(self, text: str) -> None:
        name = f"{self.server}.txt"
        await self.container.put("/tmp", {name: text.encode()})
        await self._checked("load-buffer", "-b", "typed", f"/tmp/{name}", ";", "paste-buffer", "-r", "-d", "-b", "typed", "-t", "main")

    async def look(self) -> str:
        """What is new since the last look under a heading, or the visible screen where the old text is gone. Raises SessionEnded."""
        whole = await self._capture("-S", "-")
        seen, self._seen = self._seen, whole
        if seen is not None and (place := whole.find(seen)) >= 0:
            if new := whole[place + len(seen) :].strip("\n"):
                return f"New output:\n{new}"
        return f"Current screen:\n{await self._capture()}"

    async def screen(self) -> str:
        """The visible screen. Raises SessionEnded."""
        return await self._capture()

    async def stop(self) -> None:
        """End the session and everything in it."""
        await self._tmux("kill-server")

    async def _capture(self, *span: str) -> str:
        shown = await self._checked("capture-pane", "-p", "-t", "main", *span)
        return "\n".join(line.rstrip() for line in shown.stdout.decode(errors="replace").splitlines()).rstrip()

    async def _checked(self, *arguments: str) -> ExecResult:
        done = await self._tmux(*arguments)
        if done.timed_out:
            raise SandboxFailure(Reason.EXEC_FAILED, f"tmux {arguments[0]} did not answer within {CALL_SECONDS:.0f} s")
        if done.exit_code != 0:
            raise SessionEnded(done.output.strip()[:300])
        return done

    async def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> ExecResult:
        return await self._run("tmux", "-L", self.server, *arguments, env=env)

    async def _run(self, *argv: str, env: dict[str, str] | None = None) -> ExecResult:
        return await self.container.exec(argv, timeout=CALL_SECONDS, env=env, output_cap=SCREEN_BYTES)
