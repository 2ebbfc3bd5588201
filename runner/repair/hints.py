"""Location hints: L1 names file and line, L2 the file, L3 nothing. The wording is fixed: it is part of every dataset made with it."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from runner.contract.repair import HINT_LIMIT
from runner.repair.task import section

HINTED_SOURCES = re.compile(r"inject|semantic|semantic-.+-sol")
LIST_LIMIT = 200
# "at line 12", "lines 3-5", "(L12)", "heat.f90:12": a note must not tell at L2 what only L1 may say.
_LINE = re.compile(
    r"\s*\(?\b(?:(?:at|on|in|of|near|from)\s+)?(?:lines?\s+(?:no\.?\s*)?\d+(?:\s*(?:-|–|to|and)\s*\d+)*|L\d{2,}(?:-L?\d+)?)\b\)?",
    re.IGNORECASE,
)
_FILE_LINE = re.compile(r"(\.[A-Za-z]\w{0,4}):\d+(?:[:-]\d+)*")


class HintTooLong(ValueError):
    """A hint exceeds the limit; the message says by how much."""


@dataclass(frozen=True)
class Location:
    """Where the defect is and what it does. `line` is None when it is not known, or when several files are touched."""

    files: tuple[str, ...]
    note: str
    line: int | None = None


def location_of(provenance: dict[str, Any], resolved_line: int | None = None) -> Location | None:
    """What a task's provenance says, or None when the task may not be hinted: excised code, no file, no note.

    A recorded line wins over `resolved_line`, which was found by looking for the defect's text.
    """
    candidate, meta = section(provenance, "candidate"), section(provenance, "candidate", "meta")
    files = meta.get("files") if isinstance(meta.get("files"), list) and meta["files"] else [meta.get("file")]
    files = tuple(dict.fromkeys(str(file) for file in files if file))
    note = str(candidate.get("note") or "").strip()
    if not HINTED_SOURCES.fullmatch(str(candidate.get("source") or "")) or not files or not note:
        return None
    recorded = meta.get("line")
    line = recorded if isinstance(recorded, int) and recorded > 0 and recorded is not True else resolved_line
    return Location(files, note, line if len(files) == 1 else None)


def hint_texts(location: Location | None) -> dict[str, str]:
    """{level: text} of the levels that have one; L1 without a line says what L2 says. Raises HintTooLong."""
    if location is None:
        return {}
    return {"L1": _text(location, location.line), "L2": _text(location, None)}


def _text(location: Location, line: int | None) -> str:
    note = location.note if line is not None else without_lines(location.note)
    several = len(location.files) > 1
    text = "\n".join(
        (
            "## Location hint",
            f"{'Edits were' if several else 'One edit was'} made, in:",
            *(f"    {place}" for place in _places(location.files, line)),
            f"What changed: {note.rstrip('.')}. Other files are untouched.",
        )
    )
    if len(text) > HINT_LIMIT:
        raise HintTooLong(f"the hint has {len(text)} characters, {HINT_LIMIT} are allowed")
    return text


def _places(files: tuple[str, ...], line: int | None) -> list[str]:
    if line is not None:
        return [f"{files[0]}, line {line}"]
    if len("\n".join(files)) <= LIST_LIMIT:
        return list(files)
    return [f"{common_folder(files)}/ ({len(files)} files)"]


def common_folder(files: tuple[str, ...]) -> str:
    """The deepest folder that holds all files; a dot for the root."""
    parents = [PurePosixPath(file).parent.parts for file in files]
    shared = []
    for parts in zip(*parents):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared) or "."


def without_lines(note: str) -> str:
    """The note without its line numbers."""
    return re.sub(r"\s{2,}", " ", _LINE.sub("", _FILE_LINE.sub(r"\1", note))).strip()
