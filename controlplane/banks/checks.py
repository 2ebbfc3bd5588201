"""What a record must satisfy beyond the contract before it may enter the database."""

from pydantic import BaseModel, ValidationError

from controlplane.banks.models import Task as TaskRow
from runner.contract.bank import ChoicePayload, Demonstration, Task
from runner.contract.canonical import canonical_bytes
from runner.contract.repair import BLOCKED, HINT_LIMIT, RULES, RepairPayload, is_blocked
from runner.contract.scienceworld import ScienceWorldPayload, kind_of

CHOICE_ENVIRONMENTS = ("quiz", "sciknoweval")
REPAIR_ENVIRONMENT = "harbor"
SIMULATOR_ENVIRONMENT = "scienceworld"
# Columns that lists filter by; the longest text each holds.
LIMITS = {name: TaskRow._meta.get_field(name).max_length for name in ("key", "split", "domain", "level", "family")}
FLAG_LIMIT = TaskRow._meta.get_field("flags").base_field.max_length


def record_check(environment: str):
    """A check for `read_bank`: raises ValueError with what is wrong with a record of this environment's bank."""

    def check(record: Task | Demonstration) -> None:
        _check_text(record)
        if isinstance(record, Task):
            _check_lengths(record)
            _check_payload[environment](record)

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


def _payload(task: Task, model: type[BaseModel]) -> BaseModel:
    try:
        return model.model_validate(task.payload)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"payload.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _check_choices(task: Task) -> None:
    payload = _payload(task, ChoicePayload)
    labels = [choice.label for choice in payload.choices]
    if len(set(labels)) < len(labels):
        raise ValueError(f"payload.choices: labels {', '.join(labels)} are not distinct")
    if payload.answer_key not in labels:
        raise ValueError(f"payload.answer_key: {payload.answer_key!r} is none of the labels {', '.join(labels)}")


def _check_repair(task: Task) -> None:
    payload = _payload(task, RepairPayload)
    if unknown := [finding.code for finding in payload.findings if finding.code not in RULES]:
        raise ValueError(f"payload.findings: {unknown[0]} is no code of ours; import with this version's importer")
    if is_blocked(payload.findings) != (task.split == BLOCKED):
        raise ValueError(f"split: {task.split!r}, but a task is in {BLOCKED!r} exactly when a finding blocks it")
    for level, text in payload.hints.items():
        if len(text) > HINT_LIMIT:
            raise ValueError(f"payload.hints.{level}: {len(text)} characters, at most {HINT_LIMIT}")


def _check_variation(task: Task) -> None:
    payload = _payload(task, ScienceWorldPayload)
    kind = kind_of(payload.task)
    if (payload.task_id, task.level) != (kind.id, kind.id):
        raise ValueError(f"payload.task_id and level: {payload.task_id!r} and {task.level!r}, but {kind.name} is {kind.id}")


_check_payload = {
    **dict.fromkeys(CHOICE_ENVIRONMENTS, _check_choices),
    REPAIR_ENVIRONMENT: _check_repair,
    SIMULATOR_ENVIRONMENT: _check_variation,
}
