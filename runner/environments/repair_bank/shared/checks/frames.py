"""Output frames of the simulations: read, and compare with those of the reference build. Standard library only: it runs in task images.

A frame is text: `# frame N step S time T dt D`, `# rows R columns C`, then R lines of C numbers. frame000 is the initial state, which the
deck alone decides: it has to be there but earns nothing. A case has one folder of frames for each of its decks.
"""

import math
import re
from collections import namedtuple
from pathlib import Path

HEADER = re.compile(r"# frame (\d+) step (\d+) time +(\S+) dt +(\S+)")
SHAPE = re.compile(r"# rows (\d+) columns (\d+)")
# Times are sums of equal steps: two honest ways of adding them differ by rounding only.
TIME_TOLERANCE = 1e-9

Frame = namedtuple("Frame", "number step time rows columns values")


class Nonconforming(ValueError):
    """A frame that is missing, malformed or not finite; `outcome` is the word for it."""

    def __init__(self, outcome, message):
        super().__init__(message)
        self.outcome = outcome


def read_frame(path):
    """The frame in the file. Raises Nonconforming."""
    try:
        head, shape, *lines = Path(path).read_text().splitlines()
        number, step, time, _ = HEADER.fullmatch(head.rstrip()).groups()
        rows, columns = map(int, SHAPE.fullmatch(shape.rstrip()).groups())
        values = [[float(word) for word in line.split()] for line in lines]
        frame = Frame(int(number), int(step), float(time), rows, columns, values)
    except FileNotFoundError:
        raise Nonconforming("missing_output", f"{Path(path).name} is missing") from None
    except (OSError, ValueError, AttributeError) as error:
        raise Nonconforming("nonconforming", f"{Path(path).name}: {error}") from None
    if len(values) != rows or any(len(row) != columns for row in values):
        raise Nonconforming("nonconforming", f"{Path(path).name}: not {rows} rows of {columns} numbers")
    if not all(map(math.isfinite, [frame.time, *(value for row in values for value in row)])):
        raise Nonconforming("nonconforming", f"{Path(path).name}: a value is not finite")
    return frame


def compare(reference, candidate, atol, rtol):
    """(values agree, time base agrees, largest excess of the difference over its tolerance). Raises Nonconforming on another shape."""
    if (reference.rows, reference.columns) != (candidate.rows, candidate.columns):
        raise Nonconforming("wrong_shape", f"frame {candidate.number}: {candidate.rows} x {candidate.columns}")
    excess = max(
        abs(new - old) - (atol + rtol * abs(old))
        for olds, news in zip(reference.values, candidate.values, strict=True)
        for old, new in zip(olds, news, strict=True)
    )
    same_time = candidate.step == reference.step and abs(candidate.time - reference.time) <= TIME_TOLERANCE * max(1.0, abs(reference.time))
    return excess <= 0.0, same_time, excess


def validate_frames(rubric, reference_dirs, candidate_dirs):
    """The verdict on one check: {"passed", "outcome", "frames_ok", "frames_scored", "time_base_ok", "value", "detail"}.

    `reference_dirs` and `candidate_dirs` map each deck's id to its folder of frames; `value` is the largest excess over the tolerance.
    """
    names = rubric["output_contract"]["frames"]
    verdict = {"passed": False, "outcome": "passed", "frames_ok": 0, "frames_scored": 0, "time_base_ok": False, "value": None, "detail": ""}
    if not any(any(Path(folder).glob("frame*.txt")) for folder in candidate_dirs.values()):
        return {**verdict, "outcome": "no_output", "detail": "no frame was written"}
    try:
        results = [_compared(rubric, deck, frame, reference_dirs, candidate_dirs) for deck in names for frame in names[deck]]
        _refuse_extra(names, candidate_dirs)
    except Nonconforming as error:
        return {**verdict, "outcome": error.outcome, "detail": str(error)}
    scored = [result for number, *result in results if number > 0]
    verdict |= {"frames_ok": sum(ok for ok, _, _ in scored), "frames_scored": len(scored), "value": max(excess for _, _, excess in scored)}
    verdict["time_base_ok"] = all(same for _, same, _ in scored)
    verdict["passed"] = verdict["frames_ok"] == len(scored) and verdict["time_base_ok"]
    if not verdict["passed"]:
        verdict["outcome"] = "diverged" if verdict["frames_ok"] < len(scored) else "time_base"
    return verdict


def _compared(rubric, deck, name, reference_dirs, candidate_dirs):
    reference = read_frame(Path(reference_dirs[deck]) / name)
    candidate = read_frame(Path(candidate_dirs[deck]) / name)
    return reference.number, *compare(reference, candidate, rubric["tolerances"]["atol"], rubric["tolerances"]["rtol"])


def _refuse_extra(names, candidate_dirs):
    for deck, folder in candidate_dirs.items():
        if extra := {path.name for path in Path(folder).glob("frame*.txt")} - set(names[deck]):
            raise Nonconforming("nonconforming", f"{deck}: frames that the deck does not ask for: {sorted(extra)[:3]}")
