"""Task banks as files: tasks and demonstrations in canonical JSON lines, named by their digest."""

import json
from typing import Annotated, Any, Callable, Iterable, Literal

import zstandard
from pydantic import Field, ValidationError, model_serializer

from runner.contract.canonical import Document, canonical_bytes, digest

MAX_LINE = 1 << 20
MAX_BYTES = 1 << 28
CHUNK = 1 << 14


class Choice(Document):
    """One labelled option of a multiple-choice question."""

    label: str = Field(min_length=1, max_length=4)
    text: str = Field(min_length=1)


class ChoicePayload(Document):
    """What a multiple-choice task shows, and its key."""

    instruction: str
    question: str = Field(min_length=1)
    choices: list[Choice] = Field(min_length=2)
    answer_key: str


class MenuEdit(Document):
    """One edit the `menu` agent may choose: `old` occurs exactly once in `file`. Which edit is right, only the verifier knows."""

    file: str = Field(min_length=1, max_length=400)
    old: str = Field(min_length=1)
    new: str
    label: str = Field(min_length=1, max_length=120)


class Task(Document):
    """One task. `key` is stable across versions; `split` decides what its answer may be used for."""

    record: Literal["task"] = "task"
    key: str = Field(min_length=1, max_length=200)
    split: str = Field(min_length=1, max_length=40)
    domain: str = ""
    level: str = ""
    family: str = ""
    payload: dict[str, Any]
    flags: list[str] = []


class Demonstration(Document):
    """Text for a warm start. With `prompt` null every token is trained, else only the completion.

    `history` holds what was said before the prompt, user and assistant in turn; `task` is the key of the task whose gold it is. Both
    are left out of the file where there is none.
    """

    record: Literal["demonstration"] = "demonstration"
    key: str = Field(min_length=1, max_length=200)
    split: str = "train"
    kind: str = Field(min_length=1, max_length=40)
    prompt: str | None = None
    completion: str = Field(min_length=1)
    history: list[str] = []
    task: str = Field("", max_length=200)

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, serialise):
        # Banks written before these fields were there keep their digest.
        return {key: value for key, value in serialise(self).items() if value or key not in ("history", "task")}


Record = Annotated[Task | Demonstration, Field(discriminator="record")]


class InvalidBank(ValueError):
    """A bank file was refused. `problems` holds (line number, reason) pairs, at most 100."""

    def __init__(self, problems: list[tuple[int, str]]):
        self.problems = problems
        super().__init__("; ".join(f"line {line}: {reason}" for line, reason in problems[:5]))


def write_bank(records: Iterable[Task | Demonstration]) -> tuple[bytes, str]:
    """Canonical bytes (zstd of sorted JSON lines) and the digest of the uncompressed lines."""
    ordered = sorted(records, key=lambda record: (record.record, record.key))
    text = b"".join(canonical_bytes(record) + b"\n" for record in ordered)
    return zstandard.ZstdCompressor(level=10).compress(text), digest(text)


def read_bank(
    data: bytes, check: Callable[[Task | Demonstration], None] = lambda record: None
) -> tuple[list[Task], list[Demonstration], str]:
    """Tasks, demonstrations and digest. Raises InvalidBank naming each bad line; imports nothing by halves.

    `check` may refuse a record by raising ValueError with the reason.
    """
    text = _decompress(data)
    tasks, demonstrations, problems, seen = [], [], [], set()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = _read_line(line)
            check(record)
        except (ValueError, RecursionError) as error:
            problems.append((number, str(error)))
            continue
        if (record.record, record.key) in seen:
            problems.append((number, f"duplicate {record.record} key {record.key!r}"))
        seen.add((record.record, record.key))
        (tasks if record.record == "task" else demonstrations).append(record)
    if not tasks and not problems:
        problems.append((0, "the file holds no task"))
    if problems:
        raise InvalidBank(problems[:100])
    return tasks, demonstrations, digest(text)


def _decompress(data: bytes) -> bytes:
    frame, text = zstandard.ZstdDecompressor().decompressobj(), bytearray()
    try:
        for start in range(0, len(data), CHUNK):
            text += frame.decompress(data[start : start + CHUNK])
            if len(text) > MAX_BYTES:
                raise InvalidBank([(0, f"larger than {MAX_BYTES} bytes when unpacked")])
    except zstandard.ZstdError as error:
        raise InvalidBank([(0, f"not a zstd file: {error}")]) from None
    # A file that was cut short unpacks without an error, to fewer lines.
    if not frame.eof or frame.unused_data:
        raise InvalidBank([(0, "not one whole zstd frame; the file is cut short or something follows it")])
    return bytes(text)


def _read_line(line: bytes) -> Task | Demonstration:
    if len(line) > MAX_LINE:
        raise ValueError(f"longer than {MAX_LINE} bytes")
    document = json.loads(line, parse_constant=_refuse_constant)
    kind = document.get("record") if isinstance(document, dict) else None
    model = {"task": Task, "demonstration": Demonstration}.get(kind)
    if model is None:
        raise ValueError(f"record must be 'task' or 'demonstration', got {kind!r}")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not a finite number")
