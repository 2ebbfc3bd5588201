"""The sample bank's own tasks in real containers: the terminal agent types repairs, the menu agent chooses them."""

import asyncio
import json
import secrets
from pathlib import Path

import pytest

from runner.contract.run_config import HarborEnvironment as Settings
from runner.contract.run_config import MenuAgent, TerminalAgent
from runner.environments.harbor import HarborEnvironment
from runner.environments.site import Site
from runner.repair.bank import read_bank
from runner.repair.cache import TaskCache
from runner.repair.compile import compile_bank
from runner.repair.layouts import discover
from tests.runner.environments.test_harbor import pick

BANK = Path(__file__).parents[3] / "runner" / "environments" / "repair_bank"
SOLVED = 5

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def entries(tmp_path_factory, base_image):
    """Compiled easy repairs of one code, with their folders."""
    out = tmp_path_factory.mktemp("dense")
    compile_bank(BANK, out, "*nbody-repair-*")
    bank = read_bank(discover(out))
    return [entry for entry in bank.entries if entry.payload.menu and entry.payload.tier == "easy"][:SOLVED]


@pytest.fixture
def site(tmp_path, monkeypatch, entries):
    monkeypatch.setenv("ASSAY_NODE_FOLDER", str(tmp_path))
    cache = TaskCache(tmp_path / "cache")
    for entry in entries:
        cache.adopt(entry.files.folder)
    house = f"test-{secrets.token_hex(4)}"
    return lambda **settings: Site(Settings(**settings), cache, tmp_path / "jobs", house, "attempt")


def typed(entry) -> list[str]:
    """What somebody who knows the repair would say, in three replies."""
    fixes = json.loads((entry.files.folder / "solution" / "defect_fix.json").read_text())["edits"]
    lines = ["from pathlib import Path", "import subprocess"]
    lines.append("tree = Path(subprocess.check_output(['/app/tools/tree'], text=True).strip())")
    for fix in fixes:
        lines.append(f"file = tree / {fix['file']!r}; file.write_text(file.read_text().replace({fix['old']!r}, {fix['new']!r}))")
    script = "cat > /tmp/fix.py <<'END'\n" + "\n".join(lines) + "\nEND\n"
    work = [(script, 0.5), ("python3 /tmp/fix.py && /app/tools/build && /app/tools/deliver && echo DELIVERED\n", 25.0)]
    commands = [{"keystrokes": keys, "duration": seconds} for keys, seconds in work]
    done = {"analysis": "", "plan": "", "commands": [], "task_complete": True}
    return [json.dumps({"analysis": "", "plan": "", "commands": commands}), json.dumps(done), json.dumps(done)]


async def test_the_terminal_agent_solves_five_tasks_through_tmux(site, entries):
    assert len(entries) == SOLVED
    site = site(agent=TerminalAgent(max_turns=6))
    at_once = asyncio.Semaphore(3)  # most of an episode is waiting for its terminal

    async def solve(entry):
        environment = HarborEnvironment(site.settings, site)
        async with at_once:
            try:
                await environment.start(entry.record, 1)
                for reply in typed(entry):
                    step = await environment.step(reply)
                grade = await environment.grade()
            finally:
                await environment.close()
        return grade.score, step.done, grade.reason

    async with site.open():
        scores = await asyncio.gather(*map(solve, entries))
    assert [score for score, *_ in scores] == [1.0] * SOLVED, scores


async def test_the_menu_pays_for_the_repair_and_for_nothing_else(site, entries):
    site = site(agent=MenuAgent(max_turns=2), hint_level="L1")
    earned = {}
    async with site.open():
        for is_right in (True, False):
            environment = HarborEnvironment(site.settings, site)
            try:
                text = (await environment.start(entries[0].record, 3)).messages[-1]["content"]
                fix = environment._agent.fix
                while True:
                    wrong = [edit.label for edit in entries[0].payload.menu if edit != fix]
                    step = await environment.step(pick(text, fix.file, *([fix.label] if is_right else wrong)))
                    if step.done:
                        break
                    text = step.observation.messages[-1]["content"]
                earned[is_right] = (await environment.grade()).score
            finally:
                await environment.close()
    assert earned[True] == 1.0 and earned[False] < 0.5
