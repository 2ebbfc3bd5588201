"""What needs no model: the scores a held-out accuracy is to be read against."""

from collections import Counter
from typing import Sequence

from runner.contract.bank import ChoicePayload, Task


def choice_baselines(tasks: Sequence[Task]) -> dict[str, float | None]:
    """Over multiple-choice tasks: chance (mean of 1 / options), the best constant letter, the longest option (ties share).

    None when the tasks are no choices.
    """
    payloads = [payload for task in tasks if (payload := _choices(task))]
    if not payloads:
        return {"chance": None, "majority_letter": None, "longest_option": None}
    letters = Counter(payload.answer_key for payload in payloads)
    return {
        "chance": sum(1 / len(payload.choices) for payload in payloads) / len(payloads),
        "majority_letter": max(letters.values()) / len(payloads),
        "longest_option": sum(_longest_is_key(payload) for payload in payloads) / len(payloads),
    }


def _choices(task: Task) -> ChoicePayload | None:
    return ChoicePayload.model_validate(task.payload) if "choices" in task.payload else None


def _longest_is_key(payload: ChoicePayload) -> float:
    longest = max(len(choice.text) for choice in payload.choices)
    tied = [choice.label for choice in payload.choices if len(choice.text) == longest]
    return 1 / len(tied) if payload.answer_key in tied else 0.0
