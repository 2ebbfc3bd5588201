"""The menu agent: two to four turns over numbered options, so that a small model can act in real containers.

    which file? → which edit of it? → the edit is applied, built and checked: keep it or revise? → which edit instead?

Every option compiles; which is right only the verifier knows. Options are shuffled anew each episode by counter-based randomness: the
order is a function of (seed, turn), and all members of a group see the same one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.agents.base import Action, Ask, user
from runner.agents.terminal_protocol import truncate, without_thinking
from runner.contract.bank import MenuEdit
from runner.contract.run_config import MenuAgent as Settings
from runner.contract.termination import Termination
from runner.environments.base import Message, Observation, Step
from runner.sandbox.base import Container
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.task import SandboxTask

TOOL_SECONDS = 120.0
READ_LIMIT = 4 << 20
WHICH_FILE, WHICH_EDIT = "Which file has the defect?", "Which edit repairs it?"
KEEP, REVISE = "keep the edit", "revise: choose another edit"
BUILD_AND_CHECK = (
    'if told=$("$T/build" 2>&1); then echo "build: ok"; "$T/check" 2>&1 || true; else echo "build: failed"; echo "$told" | tail -n 5; fi'
)
# Keeps the shuffling of options apart from other draws under an episode's seed.
STREAM_OPTIONS = 11
STREAM_DRAW = 1 << 20


@dataclass(frozen=True)
class Menu:
    """A question and its options in the order shown; options are answered by their number, from 1."""

    question: str
    options: tuple[str, ...]

    @property
    def text(self) -> str:
        lines = "\n".join(f"{number}. {option}" for number, option in enumerate(self.options, 1))
        return f"{self.question}\n{lines}"


def shuffled(items: Sequence, seed: int, turn: int) -> list:
    """`items` in the order of (seed, turn)."""
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM_OPTIONS, turn]))).permutation(len(items))
    return [items[index] for index in order]


def chosen(reply: str, count: int) -> int | None:
    """The index a reply names, by the only number in it; None when it names none, several or one that is not offered."""
    numbers = re.findall(r"\d+", without_thinking(reply))
    return int(numbers[0]) - 1 if len(numbers) == 1 and 1 <= int(numbers[0]) <= count else None


def offered(edits: Sequence[MenuEdit], fix: MenuEdit | None, most: int, seed: int) -> list[MenuEdit]:
    """At most `most` edits of each file, drawn anew each episode; the one that repairs it is always among its file's."""
    kept = []
    for file in dict.fromkeys(edit.file for edit in edits):
        drawn = shuffled([edit for edit in edits if edit.file == file], seed, STREAM_DRAW)
        # Stable: the fix comes first, the others keep their drawn order.
        kept += sorted(drawn, key=lambda edit: edit != fix)[:most]
    return kept


class Dialogue:
    """The questions of one episode, without a container: what is asked next, and what an answer means.

    `applied` is the edit that stands; `tried` are all that were applied.
    """

    def __init__(self, edits: Sequence[MenuEdit], max_turns: int, seed: int):
        self.edits, self.max_turns, self.seed = list(edits), max_turns, seed
        self.turns = 0
        self.applied: MenuEdit | None = None
        self.tried: list[MenuEdit] = []
        self._choices: list = []
        self._menu: Menu | None = None

    def first(self) -> Menu:
        """Which file, where there are several; else which edit."""
        files = list(dict.fromkeys(edit.file for edit in self.edits))
        if len(files) > 1:
            return self._ask(WHICH_FILE, files, files)
        return self._ask(WHICH_EDIT, self.edits, [edit.label for edit in self.edits])

    @property
    def options(self) -> int:
        """How many the present question has."""
        return len(self._choices)

    def answer(self, reply: str) -> "str | MenuEdit | bool | None":
        """A file, an edit to apply, True to keep, False to revise; None when the reply names no option. Counts the turn."""
        self.turns += 1
        index = chosen(reply, len(self._choices))
        return None if index is None else self._choices[index]

    def again(self) -> Menu:
        """The same question once more."""
        return Menu(f"Answer with one number from 1 to {len(self._choices)}.", self._menu.options)

    def edits_of(self, file: str) -> Menu:
        offered = [edit for edit in self.edits if edit.file == file]
        return self._ask(WHICH_EDIT, offered, [edit.label for edit in offered])

    def keep_or_revise(self, seen: str) -> Menu:
        return self._ask(seen, [True, False], [KEEP, REVISE])

    def other_edits(self) -> Menu:
        offered = [edit for edit in self.edits if edit not in self.tried]
        return self._ask("Which edit instead?", offered, [f"{edit.file}: {edit.label}" for edit in offered])

    @property
    def may_revise(self) -> bool:
        """Whether a decision and another edit still fit, and there is another edit."""
        return self.turns + 2 <= self.max_turns and len(self.tried) < len(self.edits)

    def _ask(self, question: str, choices: Sequence, texts: Sequence[str]) -> Menu:
        pairs = shuffled(list(zip(choices, texts, strict=True)), self.seed, self.turns)
        self._choices = [choice for choice, _ in pairs]
        self._menu = Menu(question, tuple(text for _, text in pairs))
        return self._menu


class MenuAgent:
    """See `TurnAgent`. `edits` are the task's; `fix` is the one that repairs it, known here only so that it is always offered."""

    name, version = "menu", "1"

    def __init__(self, settings: Settings, edits: Sequence[MenuEdit], fix: MenuEdit | None = None):
        self.settings, self.edits, self.fix = settings, edits, fix
        self.actions: list[Action] = []
        self._container: Container | None = None
        self.dialogue: Dialogue | None = None
        self._tree = ""
        self._originals: dict[str, str] = {}

    async def setup(self, container: Container, task: SandboxTask) -> None:
        if len(self.edits) < 2:
            told = (
                f"{task.name}: a menu needs at least two edits, it has {len(self.edits)}; add them to menu.json, or use the terminal agent"
            )
            raise SandboxFailure(Reason.AGENT_SETUP_FAILED, told)
        self._container = container
        place = await self._tool("tree")
        self._tree = place.strip()
        for file in {edit.file for edit in self.edits}:
            self._originals[file] = (await container.read(f"{self._tree}/{file}", READ_LIMIT)).decode()
        for edit in self.edits:
            if (found := self._originals[edit.file].count(edit.old)) != 1:
                told = f"{task.name}: menu edit {edit.label!r}: its old text stands {found} times in {edit.file}, once is needed"
                raise SandboxFailure(Reason.CONTEXT_MISSING, told)

    async def preview(self, instruction: str, seed: int) -> list[Message]:
        return [user(f"{instruction}\n\n{self._dialogue(seed).first().text}")]

    async def begin(self, instruction: str, seed: int) -> list[Message]:
        self.dialogue = self._dialogue(seed)
        return [user(f"{instruction}\n\n{self.dialogue.first().text}")]

    def _dialogue(self, seed: int) -> Dialogue:
        return Dialogue(offered(self.edits, self.fix, self.settings.max_edits, seed), self.settings.max_turns, seed)

    async def take(self, reply: str) -> Step:
        dialogue, action = self.dialogue, Action(reply)
        self.actions.append(action)
        answer = dialogue.answer(reply)
        if answer is None:
            action.errors.append("the reply names no option")
            return self._show(action, dialogue.again())
        if answer is True:
            action.calls.append(("keep_edit", {"label": dialogue.applied.label}))
            return Step(done=True)
        if answer is False:
            action.calls.append(("revert_edit", {"label": dialogue.applied.label}))
            await self._revert()
            return self._show(action, dialogue.other_edits())
        if isinstance(answer, str):
            action.calls.append(("choose_file", {"file": answer}))
            return self._show(action, dialogue.edits_of(answer))
        return await self._apply(answer, action)

    async def cut(self, reply: str) -> Step:
        """A number is a number, whether the reply ended after it or was cut."""
        return await self.take(reply)

    async def _apply(self, edit: MenuEdit, action: Action) -> Step:
        dialogue = self.dialogue
        action.calls.append(("apply_edit", {"file": edit.file, "label": edit.label}))
        await self._write(edit.file, self._originals[edit.file].replace(edit.old, edit.new))
        dialogue.applied = edit
        dialogue.tried.append(edit)
        if not dialogue.may_revise:
            return Step(done=True)
        seen = truncate(await self._build_and_check(), self.settings.max_observation_bytes)
        return self._show(action, dialogue.keep_or_revise(seen))

    async def _build_and_check(self) -> str:
        # A file that was written in the second of its last build would look built.
        script = f'touch "{self._tree}/{self.dialogue.applied.file}"; {BUILD_AND_CHECK}'
        return (await self._shell(script)).strip()

    async def _revert(self) -> None:
        edit = self.dialogue.applied
        await self._write(edit.file, self._originals[edit.file])
        self.dialogue.applied = None

    def _show(self, action: Action, menu: Menu) -> Step:
        action.observation = menu.text
        if self.dialogue.turns >= self.settings.max_turns:
            return Step(done=True, termination=Termination.MAX_TURNS_EXCEEDED)
        return Step(Observation([user(menu.text)]))

    async def condense(self, ask: Ask, history: Sequence[Message]) -> list[Message] | None:
        """A menu is short; there is nothing to condense."""
        return None

    async def finish(self) -> None:
        """Deliver the tree when an edit stands in it; who chose nothing delivers nothing."""
        if self.dialogue and self.dialogue.applied:
            await self._tool("deliver")

    # ------------------------------------------------------------ the container
    async def _write(self, file: str, text: str) -> None:
        await self._container.put(self._tree, {file: text.encode()})

    async def _tool(self, name: str) -> str:
        return await self._shell(f'exec "$T/{name}"')

    async def _shell(self, script: str) -> str:
        """The output of a script that finds the image's tools in $T. Raises SandboxFailure when it fails or hangs."""
        done = await self._container.exec(["sh", "-c", f'T="${{ASSAY_APP:-/app}}/tools"; {script}'], timeout=TOOL_SECONDS)
        if done.timed_out or done.exit_code != 0:
            why = f"hung for {TOOL_SECONDS:.0f} s" if done.timed_out else f"exited with {done.exit_code}"
            raise SandboxFailure(Reason.EXEC_FAILED, f"a tool of the agent's image {why}: {script[:80]}: {done.output.strip()[-300:]}")
        return done.stdout.decode(errors="replace")
