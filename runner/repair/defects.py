"""A defect and its fix: does the text fit the source, is the one the inverse of the other, on which line is it?"""

from typing import Any

from runner.repair.apply_defect import Refused, changed_files, diff_hunks
from runner.repair.sources import PinnedSource

Change = dict[str, Any]


def misfit(change: Change, source: PinnedSource) -> str | None:
    """Why `change` cannot be made in the clean source, or None."""
    try:
        changed_files(change, source.read)
    except Refused as error:
        return str(error)
    except (AttributeError, TypeError) as error:
        return f"it cannot be read: {error}"
    return None


def menu_misfits(defect: Change, menu: list[dict[str, str]], source: PinnedSource) -> list[str]:
    """Edits of a menu whose old text does not stand exactly once in the defective tree."""
    broken = changed_files(defect, source.read)
    texts = lambda path: broken[path] if path in broken else source.read(path)  # noqa: E731
    found = []
    for number, edit in enumerate(menu, 1):
        count = (texts(edit["file"]) or "").count(edit["old"])
        if count != 1:
            found.append(f"menu edit {number} ({edit['label']}): the old text stands {count} times in {edit['file']}, once is needed")
    return found


def not_inverse(defect: Change, fix: Change, source: PinnedSource | None) -> str | None:
    """Why the fix does not undo the defect, or None. With the source at hand it is tried, else the texts are compared."""
    if source is not None and misfit(defect, source) is None:
        return _not_undone(defect, fix, source)
    if "edits" in defect and "edits" in fix:
        return (
            None
            if _inverse_edits(defect["edits"]) == _plain(fix["edits"])
            else "its edits are not the defect's, swapped and in reverse order"
        )
    if "diff" in defect and "diff" in fix:
        return None if _inverse_hunks(defect["diff"]) == _hunks(fix["diff"]) else "its diff is not the defect's, reversed"
    return "one is a diff and the other a list of edits, which can be compared only with the source archive"


def _not_undone(defect: Change, fix: Change, source: PinnedSource) -> str | None:
    broken = changed_files(defect, source.read)
    try:
        fixed = changed_files(fix, lambda path: broken[path] if path in broken else source.read(path))
    except Refused as error:
        return f"it does not fit the defective tree: {error}"
    for path in sorted(broken.keys() | fixed.keys()):
        if fixed.get(path, broken.get(path)) != source.read(path):
            return f"{path} differs from the clean source after the fix"
    return None


def _plain(edits: list[dict]) -> list[tuple]:
    return [(edit.get("file"), edit.get("old"), edit.get("new")) for edit in edits]


def _inverse_edits(edits: list[dict]) -> list[tuple]:
    return [(file, new, old) for file, old, new in reversed(_plain(edits))]


def _hunks(diff: str) -> dict:
    return {path: [(old, new) for _, old, new in hunks] for path, hunks in diff_hunks(diff).items()}


def _inverse_hunks(diff: str) -> dict:
    return {path: [(new, old) for old, new in hunks] for path, hunks in _hunks(diff).items()}


def locate(defect: Change, source: PinnedSource) -> tuple[int | None, str]:
    """(line from 1, status) of the first edit's old text in the clean source.

    Status is ok, file_missing, no_match, ambiguous_<n>, no_edits, or no_edit_fields.
    """
    edits = defect.get("edits")
    if not isinstance(edits, list) or not edits:
        return None, "no_edits"
    first = edits[0] if isinstance(edits[0], dict) else {}
    file, old = first.get("file"), first.get("old")
    if not (isinstance(file, str) and isinstance(old, str) and file and old):
        return None, "no_edit_fields"
    text = source.read(file)
    if text is None:
        return None, "file_missing"
    count = text.count(old)
    if count != 1:
        return None, f"ambiguous_{count}" if count else "no_match"
    return 1 + text.count("\n", 0, text.index(old)), "ok"
