"""What a Dockerfile copies, and whether it brings tmux: read as text, built by nobody."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# What an agent's image may not hold. `reference` are the clean build's outputs.
_FORBIDDEN_PARTS = re.compile(r"solution|tests|references?|reference[_-]outputs?|expected[_-]outputs?")
_FORBIDDEN_FILES = frozenset({"fix.json", "defect_fix.json", "floor.json"})
# Our own base images have tmux in them.
_BASE_WITH_TMUX = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*\S*assay-sandbox", re.IGNORECASE | re.MULTILINE)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """(NAME, arguments) of each instruction, its continuation lines joined."""
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        name, _, arguments = joined.strip().partition(" ")
        yield name.upper(), arguments.strip()
        joined = ""


def copied(text: str) -> Iterator[str]:
    """Every source of COPY and ADD, those of other stages too."""
    for name, arguments in instructions(text):
        if name in ("COPY", "ADD"):
            yield from _words(arguments)[:-1]


def _words(arguments: str) -> list[str]:
    while arguments.startswith("--"):
        arguments = arguments.partition(" ")[2].lstrip()
    if arguments.startswith("["):
        try:
            return [str(word) for word in json.loads(arguments)]
        except ValueError:
            return []
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()


def leaks(environment: Path, text: str) -> list[str]:
    """What the agent's image copies and may not: paths that lead to the solution, the tests or the reference."""
    found = []
    for source in copied(text):
        path = PurePosixPath(source)
        if is_forbidden(path):
            found.append(source)
        elif not path.is_absolute() and (inside := environment / path).is_dir() and inside.resolve().is_relative_to(environment.resolve()):
            below = (item.relative_to(environment).as_posix() for item in sorted(inside.rglob("*")))
            found += [f"{source} ({name})" for name in below if is_forbidden(PurePosixPath(name))][:3]
    return found


def is_forbidden(path: PurePosixPath) -> bool:
    return path.name in _FORBIDDEN_FILES or any(_FORBIDDEN_PARTS.fullmatch(part.lower()) for part in path.parts)


def has_tmux(text: str) -> bool:
    """Whether the image installs tmux, or starts from a base of ours that has it."""
    return "tmux" in text or bool(_BASE_WITH_TMUX.search(text))
