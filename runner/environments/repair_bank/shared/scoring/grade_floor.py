#!/usr/bin/env python3
"""grade_floor.py: break the pinned source as the task does, build it, grade it: that score is the floor. Leaves straw/ and floor.json.

A straw that does not apply, build or run is no error of the verifier: its floor is 0 and straw_status says what happened.
"""

import json
import subprocess
import sys

from grade import CATEGORY, TESTS, TARGET, grade_tree, rewards
from rows import build, unpack

BUILD_TIMEOUT = @STRAW_TIMEOUT@


def main():
    floor, per_check, status = 0.0, {}, "ok"
    straw = TESTS / "straw"
    unpack(TESTS / "source" / "source.tar", straw)
    defect = TESTS / "defect"
    if subprocess.run([sys.executable, defect / "apply_defect.py", defect / "defect.json", straw]).returncode != 0:
        status = "crashed: apply"
    elif build(straw, TARGET, BUILD_TIMEOUT, {}).code != 0:
        status = "crashed: build"
    else:
        verdicts = grade_tree(straw, {})
        measured = rewards(verdicts, 1.0, 0.0)
        floor, per_check = measured["reward"], {key: value for key, value in measured.items() if key.startswith("check_")}
        if any(verdict["outcome"] in ("crash", "timeout") for verdict in verdicts.values()):
            status = "crashed: run"
    report = {"floor": floor, "per_check": per_check, "straw_status": status}
    (TESTS / "floor.json").write_text(json.dumps(report, sort_keys=True) + "\n")
    print(f"{CATEGORY} floor {floor} ({status})")


if __name__ == "__main__":
    main()
