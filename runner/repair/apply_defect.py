#!/usr/bin/env python3
"""apply_defect.py FILE TREE: make the changes of defect.json or defect_fix.json in a source tree, all of them or none.

FILE holds {"edits": [{"file", "old", "new"}]}, each `old` standing exactly once in its file when its turn comes, or {"diff": a unified
diff with a/ and b/ prefixes}. The compiler puts this file beside every defect: standard library only, it runs inside task images.
"""

import json
import re
import sys
from pathlib import Path, PurePosixPath

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class Refused(ValueError):
    """The change does not fit the tree. The message names the file and what was found there."""


def changed_files(change, read):
    """{path: new text} of every file that `change` rewrites. `read(path)` gives a file's text, None when there is none. Raises Refused."""
    if isinstance(change.get("edits"), list):
        return _edited(change["edits"], read)
    if isinstance(change.get("diff"), str):
        return {path: _patched(path, hunks, _text(path, read)) for path, hunks in diff_hunks(change["diff"]).items()}
    raise Refused("neither a list `edits` nor a text `diff`")


def _edited(edits, read):
    texts = {}
    for number, edit in enumerate(edits, 1):
        try:
            path, old, new = edit["file"], edit["old"], edit["new"]
        except (KeyError, TypeError):
            raise Refused(f"edit {number} needs the texts file, old and new") from None
        text = texts[path] if path in texts else _text(path, read)
        count = text.count(old) if old else 0
        if count != 1:
            raise Refused(f"edit {number}: the old text stands {count} times in {path}, once is needed")
        texts[path] = text.replace(old, new)
    return texts


def _text(path, read):
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise Refused(f"{path}: must stay inside the tree")
    text = read(path)
    if text is None:
        raise Refused(f"{path}: no such file")
    return text


def diff_hunks(diff):
    """{path: [(first line from 1, old lines, new lines)]} of a unified diff. Raises Refused."""
    files, hunks, lines = {}, None, diff.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        head = HUNK.match(lines[at])
        if lines[at].startswith("+++ "):
            name = lines[at][4:].split("\t")[0].strip()
            hunks = files.setdefault(name.partition("/")[2], [])
        elif head and hunks is not None:
            at, old, new = _hunk(lines, at + 1, int(head[2] or 1), int(head[3] or 1))
            hunks.append((int(head[1]), old, new))
            continue
        at += 1
    if not files:
        raise Refused("the diff names no file")
    return files


def _hunk(lines, at, old_count, new_count):
    old, new, sides = [], [], []
    while at < len(lines) and (len(old) < old_count or len(new) < new_count or lines[at].startswith("\\")):
        kind, text = lines[at][:1], lines[at][1:]
        if kind == "\\":
            for side in sides:
                side[-1] = side[-1].rstrip("\n")
        elif kind in " -+\n":
            sides = [side for side, kinds in ((old, " -\n"), (new, " +\n")) if kind in kinds]
            for side in sides:
                side.append(text if kind != "\n" else "\n")
        else:
            raise Refused(f"the diff has a line that is none: {lines[at]!r:.60}")
        at += 1
    return at, old, new


def _patched(path, hunks, text):
    lines, shift = text.splitlines(keepends=True), 0
    for first, old, new in hunks:
        start = (first if not old else first - 1) + shift
        if lines[start : start + len(old)] != old:
            raise Refused(f"{path}: line {first} and the lines after it are not those of the diff")
        lines[start : start + len(old)] = new
        shift += len(new) - len(old)
    return "".join(lines)


def apply(change, tree):
    """Rewrite the files below folder `tree`. Nothing is written unless every change fits. Raises Refused."""

    def read(path):
        file = tree / path
        # Line ends and stray bytes must survive: old science codes are not all UTF-8.
        return file.read_bytes().decode("utf-8", "surrogateescape") if file.is_file() else None

    for path, text in changed_files(change, read).items():
        (tree / path).write_bytes(text.encode("utf-8", "surrogateescape"))


def main(arguments):
    if len(arguments) != 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    try:
        apply(json.loads(Path(arguments[0]).read_text()), Path(arguments[1]))
    except (Refused, OSError, ValueError) as error:
        print(f"apply_defect: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
