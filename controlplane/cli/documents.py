"""Run documents from files, and changes to them from the command line."""

import json
import re
from pathlib import Path
from typing import Any

from controlplane.cli.client import ClientError, dotted
from runner.contract import presets
from runner.contract.parse import InvalidDocument, load_text, pointer

FORMATS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]+)\]")
MAX_BYTES = 1 << 20


def read_file(name: str) -> dict:
    """The document in a file. Raises ClientError naming the file and, for a syntax error, its line."""
    path = Path(name)
    if path.suffix not in FORMATS:
        raise ClientError(f"{name}: name it .toml, .yaml, .yml or .json, so that its format is known")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ClientError(f"{name}: larger than {MAX_BYTES} bytes, no run document is")
        return load_text(path.read_text(encoding="utf-8"), FORMATS[path.suffix])
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    except InvalidDocument as invalid:
        raise ClientError(*(f"{name}: {error.message}" for error in invalid.errors)) from None


def from_preset(name: str) -> dict:
    """A fresh document that starts from a preset."""
    try:
        return presets.find(name).start()
    except KeyError as error:
        raise ClientError(f"--preset: {error.args[0]}") from None


def sendable(document: dict, name: str) -> dict:
    """The same document, known to be plain JSON: dates of TOML and infinities of YAML are none."""
    try:
        return json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ClientError(f"{name}: {error}; a run document holds texts, finite numbers, true, false, null, lists and tables") from None


def read_changes(texts: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as {pointer: value}."""
    changes = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ClientError(f"--set {text}: write KEY=VALUE, such as stages[1].steps=20")
        changes[as_pointer(key)] = read_value(value)
    return changes


def as_pointer(key: str) -> str:
    """A JSON pointer from itself or from the dotted form that errors are printed in."""
    if key.startswith("/"):
        return key
    steps = list(STEP.finditer(key))
    if "".join(step[0] for step in steps) != key:
        raise ClientError(
            f"--set {key}: no key of a document; write stages[1].optimizer.learning_rate or /stages/1/optimizer/learning_rate"
        )
    return pointer([step[1] or step[2] for step in steps])


def read_value(text: str) -> Any:
    """JSON where it is JSON (1e-4, true, null, ["a"], "text"), else the text itself."""
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except ValueError:
        return text


def with_changes(document: dict, changes: dict[str, Any]) -> dict:
    """`document` with each value set; tables on the way are made, list items must exist."""
    for at, value in changes.items():
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in at.split("/")[1:]]
        node = document
        for part in path:
            node = _below(node, part, at)
        if isinstance(node, dict):
            node[last] = value
        elif isinstance(node, list) and last.isdigit() and int(last) < len(node):
            node[int(last)] = value
        else:
            raise _no_place(at)
    return document


def _below(node: Any, part: str, at: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(part, {})
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise _no_place(at)


def _no_place(at: str) -> ClientError:
    return ClientError(f"--set {dotted(at)}: the document has no such place")
