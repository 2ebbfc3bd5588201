"""A task's folder, read: its manifest, texts and authoring files. A file that cannot be read is kept as what is wrong with it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.contract.harbor import InvalidManifest, Manifest, read_manifest
from runner.repair.layouts import MANIFEST, Found

MAX_TEXT = 4 << 20
_HTML_COMMENT = re.compile(r"\s*<!--(.*?)-->[ \t]*\n?", re.DOTALL)
_HASH_COMMENT = re.compile(r"\s*#([^\n]*)\n?")
_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Unreadable(ValueError):
    """A file of the task that should be there in another form; the message names it."""


@dataclass(frozen=True)
class Task:
    """One task as it lies on disk. `problem` says why there is no manifest; `broken` are companion files that cannot be read."""

    found: Found
    manifest: Manifest | None
    problem: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.found.folder

    @cached_property
    def raw_instruction(self) -> str | None:
        return read_text(self.folder / "instruction.md")

    @cached_property
    def instruction(self) -> str:
        """What the agent is told: without the leading canary comments."""
        return strip_canary(self.raw_instruction or "")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return self._document("authoring/provenance.json") or {}

    @cached_property
    def defect(self) -> dict[str, Any] | None:
        return self._document("environment/defect/defect.json", "defect.json")

    @cached_property
    def fix(self) -> dict[str, Any] | None:
        return self._document("solution/defect_fix.json", "fix.json")

    @cached_property
    def menu(self) -> list[dict[str, Any]]:
        """The edits that the menu agent may choose among, as written."""
        document = self._json("authoring/menu.json", "menu.json")
        edits = document.get("edits", []) if isinstance(document, dict) else document or []
        return [edit for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []

    @property
    def canary(self) -> str:
        """The GUID that marks the task's text, empty when it has none."""
        taxonomy = self.manifest.taxonomy.canary if self.manifest else ""
        match = _GUID.search(taxonomy) or _GUID.search(str(self.provenance.get("canary", "")))
        return match[0] if match else ""

    @property
    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(path, content) of the row.json of every case that the task or its environment holds."""
        folders = [self.folder / "environment" / "cases", self.folder / "tests" / "cases"]
        if self.found.env_folder and not self.found.is_dense:
            folders += [self.found.env_folder / "env" / "cases", self.found.env_folder / "cases"]
        first = next((folder for folder in folders if folder.is_dir()), None)
        for path in sorted(first.glob("*/row.json")) if first else ():
            if isinstance(row := parse_json(read_text(path)), dict):
                yield f"cases/{path.parent.name}/row.json", row

    def _document(self, *names: str) -> dict[str, Any] | None:
        document = self._json(*names)
        return document if isinstance(document, dict) else None

    def _json(self, *names: str) -> Any:
        for name in names:
            if (path := self.folder / name).is_file():
                document = parse_json(read_text(path))
                if document is None:
                    self.broken.append(f"{name} is not JSON")
                return document
        return None


def load(found: Found) -> Task:
    """Read the manifest of a task's folder."""
    text = read_text(found.folder / MANIFEST)
    if text is None:
        return Task(found, None, f"{MANIFEST} is missing, larger than {MAX_TEXT >> 20} MiB, or not UTF-8")
    try:
        return Task(found, read_manifest(text))
    except InvalidManifest as error:
        return Task(found, None, str(error))


def read_text(path: Path) -> str | None:
    """A UTF-8 file of at most 4 MiB, else None."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_TEXT else None
    except (OSError, UnicodeDecodeError):
        return None


def parse_json(text: str | None) -> Any:
    """The document, None when the text is missing or no JSON."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def strip_canary(text: str) -> str:
    """Leave off leading comments, HTML or #, that contain the word canary, and the blank lines after them."""
    while True:
        comment = _HTML_COMMENT.match(text) or _HASH_COMMENT.match(text)
        if comment is None or "canary" not in comment[1].lower():
            return text
        text = text[comment.end() :].lstrip("\n")


def section(document: Any, *keys: str) -> dict[str, Any]:
    """The object at a path of keys; empty when anything on the way is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def number(value: Any) -> float | None:
    """A finite number, else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0 else None
