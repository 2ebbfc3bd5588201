"""reference.py: build the clean pinned source and keep what every case writes. Any failure ends the build of the verifier.

Leaves reference/<check>/<deck>/frame*.txt and reference/walltimes.json ({check: seconds}) beside this file.
"""

import json
import shutil
import sys
from pathlib import Path

from rows import build, read_row, run_row, unpack

TESTS = Path(__file__).resolve().parent
BUILD_TIMEOUT = 300


def main():
    tree, reference = TESTS / "clean", TESTS / "reference"
    unpack(TESTS / "source" / "source.tar", tree)
    rows = [read_row(TESTS / "cases", path.parent.name) for path in sorted((TESTS / "cases").glob("*/row.json"))]
    for target in sorted({row["build"] for row in rows}):
        done = build(tree, target, BUILD_TIMEOUT, {})
        if done.code != 0:
            sys.exit(f"the clean source does not build:\n{done.output}")
    walltimes = {row["check"]: kept(tree, row, reference / row["check"]) for row in rows}
    (reference / "walltimes.json").write_text(json.dumps(walltimes, indent=1, sort_keys=True) + "\n")
    # A delivered source could include the answer if it stayed where the compiler reads.
    shutil.rmtree(tree)
    reference.chmod(0o700)


def kept(tree, row, outputs):
    """Run one case of the clean build; returns its wall seconds."""
    for deck in row["decks"]:
        (outputs / deck["id"]).mkdir(parents=True)
    run = run_row(tree, TESTS / "cases", row, outputs, {})
    if run.outcome != "ran":
        sys.exit(f"{row['check']}: the clean build ended in {run.outcome}:\n{run.output}")
    return round(run.seconds, 4)


if __name__ == "__main__":
    main()
