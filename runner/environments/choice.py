"""Single-turn multiple choice: the question and its labelled options in one message, one reply, reward 1 for the keyed label."""

from pydantic import ValidationError

from runner.contract.bank import ChoicePayload, Task
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure, ForcedChoice, Grade, Message, Observation, Step
from runner.environments.extraction import extract_label


def read_payload(task: Task) -> ChoicePayload:
    """The task's question. Raises ValueError naming what is wrong with it."""
    try:
        payload = ChoicePayload.model_validate(task.payload)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"task {task.key}: payload.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    labels = [choice.label for choice in payload.choices]
    if len(set(labels)) < len(labels):
        raise ValueError(f"task {task.key}: payload.choices: labels {labels} are not distinct")
    if payload.answer_key not in labels:
        raise ValueError(f"task {task.key}: payload.answer_key: {payload.answer_key!r} is none of the labels {labels}")
    return payload


def option_lines(payload: ChoicePayload) -> str:
    """One `L. text` line an option."""
    return "\n".join(f"{choice.label}. {choice.text}" for choice in payload.choices)


def prompt_messages(payload: ChoicePayload, without_question: bool = False) -> list[Message]:
    """The instruction as system message, unless empty; then question, blank line and options as user message."""
    system = [{"role": "system", "content": payload.instruction}] if payload.instruction else []
    text = option_lines(payload) if without_question else f"{payload.question}\n\n{option_lines(payload)}"
    return [*system, {"role": "user", "content": text}]


class ChoiceEnvironment:
    """One episode on one question. A reply that names no option scores 0 and ends the episode as parse_failed."""

    grader = "exact-label"
    label_of = staticmethod(extract_label)
    """Which option a reply chooses."""

    def __init__(self) -> None:
        self._payload: ChoicePayload | None = None
        self._reply: str | None = None

    async def start(self, task: Task, seed: int) -> Observation:
        """Show the question; options stand in the bank's order whatever the seed."""
        try:
            self._payload = read_payload(task)
        except ValueError as error:
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, str(error)) from error
        return Observation(prompt_messages(self._payload))

    async def step(self, action: str) -> Step:
        """Take the reply; there is only one."""
        self._reply = action
        return Step(done=True)

    async def grade(self) -> Grade:
        """1.0 for the keyed label, 0.0 for any other reply."""
        if self._payload is None or self._reply is None:
            return Grade(None, "nothing to grade: the episode has no reply", grader=self.grader, termination=Termination.VERIFIER_ERROR)
        found = self.label_of(self._reply, self._payload.choices)
        key = self._payload.answer_key
        evidence = {"label": found.label, "key": key, "rule": found.rule}
        if found.label is None:
            return Grade(
                0.0, f"no label found ({found.rule})", False, {"parsed": 0.0}, evidence, self.grader, Termination.PARSE_FAILED
            )
        correct = float(found.label == key)
        reason = f"chose {found.label}" + ("" if correct else f", the key is {key}")
        return Grade(correct, reason, True, {"parsed": 1.0, "correct": correct}, evidence, self.grader)

    async def close(self) -> None:
        """Nothing is held."""

    def forced_choice(self, task: Task, without_question: bool = False) -> ForcedChoice:
        """The labels as continuations of the prompt. Raises ValueError on a broken task."""
        payload = read_payload(task)
        labels = [choice.label for choice in payload.choices]
        return ForcedChoice(prompt_messages(payload, without_question), "", labels, labels.index(payload.answer_key))
