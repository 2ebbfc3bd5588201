"""grade_floor.py: break the pinned source as the task does, build it, grade it: that score is the floor. Leaves straw/ and floor.json.

A straw that does not apply, build or run is no error of the verifier: its floor is 0 and straw_status says what happened.
"""

import json
import subprocess
import sys

from grade import CATEGORY, TARGET, TESTS, grade_tree, rewards
from rows import build, limit_files, unpack

BUILD_TIMEOUT = float("@STRAW_TIMEOUT@")


def main():
    limit_files()
    verdicts, status = {}, "ok"
    straw = TESTS / "straw"
    unpack(TESTS / "source" / "source.tar", straw)
    defect = TESTS / "defect"
    if subprocess.run([sys.executable, defect / "apply_defect.py", defect / "defect.json", straw], check=False).returncode != 0:
        status = "crashed: apply"
    elif build(straw, TARGET, BUILD_TIMEOUT, {}).code != 0:
        status = "crashed: build"
    else:
        verdicts = grade_tree(straw, {})
        if any(verdict["outcome"] in ("crash", "timeout") for verdict in verdicts.values()):
            status = "crashed: run"
    measured = rewards(verdicts, 1.0, 0.0) if verdicts else {"reward": 0.0}
    floor, per_check = measured["reward"], {key: value for key, value in measured.items() if key.startswith("check_")}
    (TESTS / "floor.json").write_text(json.dumps({"floor": floor, "per_check": per_check, "straw_status": status}, sort_keys=True) + "\n")
    (TESTS / "straw_verdicts.json").write_text(json.dumps(verdicts, indent=1) + "\n")
    print(f"{CATEGORY} floor {floor} ({status})")


if __name__ == "__main__":
    main()
