"""What a record must satisfy beyond the contract before it may enter the database."""

from pydantic import ValidationError

from controlplane.banks.models import Task as TaskRow
from runner.contract.bank import ChoicePayload, Demonstration, Task
from runner.contract.canonical import canonical_bytes

CHOICE_ENVIRONMENTS = ("quiz", "sciknoweval")
# Columns that lists filter by; the longest text each holds.
LIMITS = {name: TaskRow._meta.get_field(name).max_length for name in ("key", "split", "domain", "level", "family")}
FLAG_LIMIT = TaskRow._meta.get_field("flags").base_field.max_length


def record_check(environment: str):
    """A check for `read_bank`: raises ValueError with what is wrong with a record of this environment's bank."""

    def check(record: Task | Demonstration) -> None:
        _check_text(record)
        if isinstance(record, Task):
            _check_lengths(record)
            if environment in CHOICE_ENVIRONMENTS:
                _check_choices(record)

    return check


def _check_text(record: Task | Demonstration) -> None:
    try:
        data = canonical_bytes(record)
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate, which is no text; repair the escape") from None
    if b"\\u0000" in data:
        raise ValueError("a null character, which Postgres cannot hold; remove it")


def _check_lengths(task: Task) -> None:
    for name, limit in LIMITS.items():
        if len(getattr(task, name)) > limit:
            raise ValueError(f"{name}: longer than {limit} characters")
    for flag in task.flags:
        if len(flag) > FLAG_LIMIT:
            raise ValueError(f"flags: {flag[:20]!r}… is longer than {FLAG_LIMIT} characters")


def _check_choices(task: Task) -> None:
    try:
        payload = ChoicePayload.model_validate(task.payload)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"payload.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    labels = [choice.label for choice in payload.choices]
    if len(set(labels)) < len(labels):
        raise ValueError(f"payload.choices: labels {', '.join(labels)} are not distinct")
    if payload.answer_key not in labels:
        raise ValueError(f"payload.answer_key: {payload.answer_key!r} is none of the labels {', '.join(labels)}")
