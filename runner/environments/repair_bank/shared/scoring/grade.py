# @CANARY@
"""grade.py: build what the agent delivered, run the graded cases, compare their frames with the reference, write reward.json.

The delivered files are laid over a copy of the broken tree, so only what changed is compiled again. Where the process may, everything that
comes from the agent is compiled and run as nobody, who cannot read the reference. Score of a check: 0 when it does not build or run, 0.1
for output that does not conform, else 0.2 + 0.5 x the share of frames within tolerance + 0.3 for an equal time base, and 1 for a full pass.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from rows import build, execute, limit_files, other_identity, read_row, run_row, scratch_folder

TESTS = Path(__file__).resolve().parent
LOGS = Path(os.environ.get("ASSAY_LOGS", "/logs"))
CHECKS = "@CHECKS_SH@".split()  # noqa: SIM905 - the compiler fills it
CATEGORY, TARGET = "@CATEGORY@", "@TARGET@"
BUILD_TIMEOUT = 120
# What may be delivered: sources and data, by suffix, of a bounded size. The build file and the decks are the verifier's own.
SUFFIXES = {"src": {".f90", ".c", ".h"}, "data": {".dat"}}
LARGEST_FILE = 1 << 20
# Acceleration: share of the reward earned from this speed-up on, incumbent CPU seconds over delivered ones, the best of three each.
SPEEDUP_LADDER = ((1.5, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0))
REPEATS = 3


def main():
    limit_files()
    floor = json.loads((TESTS / "floor.json").read_text())["floor"]
    identity = other_identity(TESTS / "straw")
    delivered, ignored = delivered_files(LOGS / "artifacts" / "source")
    verdicts, speedup, output = judge(delivered, identity)
    result = rewards(verdicts, speedup, floor)
    folder = LOGS / "verifier"
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "checks": verdicts,
        "candidate_isolated": bool(identity),
        "delivered": sorted(delivered),
        "ignored": ignored,
        "build_output": output,
    }
    write(folder / "grading_report.json", report)
    write(folder / "reward.json", result)
    for check, verdict in verdicts.items():
        print(f"{check}: {verdict['outcome']}, score {verdict['score']} {verdict['detail']}".rstrip())
    print(f"reward {result['reward']}, floor {floor}")


def write(path, document):
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    draft.replace(path)


def delivered_files(root):
    """({relative path: text}, [paths left aside]). Links, other suffixes, large and unreadable files are left aside."""
    files, ignored = {}, []
    for path in sorted(root.rglob("*")) if root.is_dir() and not root.is_symlink() else ():
        place = path.relative_to(root)
        if path.is_dir() and not path.is_symlink():
            continue
        text = readable(path) if len(place.parts) == 2 and path.suffix in SUFFIXES.get(place.parts[0], ()) else None
        if text is None:
            ignored.append(str(place))
        else:
            files[str(place)] = text
    return files, ignored[:50]


def readable(path):
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_FILE:
        return None
    return path.read_bytes().decode("utf-8", "surrogateescape")


def judge(delivered, identity):
    """(verdict of each check, speed-up or 0, output of the build) of the delivered files."""
    if not delivered:
        return {check: verdict_of("no_output", "nothing was delivered") for check in CHECKS}, 0.0, ""
    with scratch_folder(0o777) as scratch:
        tree = staged(scratch, delivered, identity)
        done = build(tree, TARGET, BUILD_TIMEOUT, identity)
        if done.code != 0:
            return {check: verdict_of("build_failed", "") for check in CHECKS}, 0.0, done.output
        verdicts = grade_tree(tree, identity)
        passed = all(verdict["passed"] for verdict in verdicts.values())
        return verdicts, measured_speedup(tree, identity) if CATEGORY == "acceleration" and passed else 0.0, done.output


def staged(scratch, delivered, identity):
    """A copy of the broken, built tree with the delivered files over it, owned by whoever builds it."""
    parcel = scratch / "delivered.json"
    parcel.write_text(json.dumps(delivered))
    done = execute([sys.executable, str(TESTS / "stage.py"), str(TESTS / "straw"), str(parcel), str(scratch / "tree")], "/", 60, identity)
    if done.code != 0:
        raise RuntimeError(f"the candidate's tree could not be laid out: {done.output}")
    return scratch / "tree"


def grade_tree(tree, identity):
    """{check: verdict} of a built tree."""
    verdicts = {}
    for check in CHECKS:
        with scratch_folder(0o755) as outputs:
            try:
                verdicts[check] = grade_check(tree, check, outputs, identity)
            except Exception as error:  # noqa: BLE001 - one check that cannot be graded must not cost the others their score
                verdicts[check] = verdict_of("grader_exception", f"{type(error).__name__}: {error}")
    return verdicts


def grade_check(tree, check, outputs, identity):
    row = read_row(TESTS / "cases", check)
    candidate, reference = prepared(row, outputs), {deck["id"]: TESTS / "reference" / check / deck["id"] for deck in row["decks"]}
    run = run_row(tree, TESTS / "cases", row, outputs, identity)
    if run.outcome != "ran":
        return verdict_of(run.outcome, run.output[-300:].strip(), run.seconds)
    verdict = validator(check).validate(reference, candidate)
    return {**verdict, "score": ladder(verdict), "wall": round(run.seconds, 3)}


def prepared(row, outputs):
    folders = {deck["id"]: outputs / deck["id"] for deck in row["decks"]}
    for folder in folders.values():
        folder.mkdir()
        folder.chmod(0o777)
    return folders


def validator(check):
    spec = importlib.util.spec_from_file_location(f"validate_{check.replace('-', '_')}", TESTS / "checks" / check / "validate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict_of(outcome, detail, seconds=0.0):
    verdict = {"passed": False, "outcome": outcome, "frames_ok": 0, "frames_scored": 0, "time_base_ok": False, "value": None}
    return {**verdict, "detail": detail, "score": 0.0, "wall": round(seconds, 3)}


def ladder(verdict):
    """The score of a check that ran."""
    if verdict["passed"]:
        return 1.0
    if verdict["outcome"] == "no_output":
        return 0.0
    if verdict["outcome"] not in ("diverged", "time_base"):
        return 0.1
    return round(0.2 + 0.5 * verdict["frames_ok"] / verdict["frames_scored"] + 0.3 * verdict["time_base_ok"], 6)


def measured_speedup(tree, identity):
    """CPU seconds of the incumbent (the broken tree) over the candidate's, all cases together, each the least of a few runs in turn."""
    totals = {TESTS / "straw": 0.0, tree: 0.0}
    for check in CHECKS:
        times = {place: [] for place in totals}
        for _ in range(REPEATS):
            for place in totals:
                times[place].append(timed(place, check, identity))
        totals = {place: total + min(times[place]) for place, total in totals.items()}
    return round(totals[TESTS / "straw"] / max(1e-6, totals[tree]), 4)


def timed(tree, check, identity):
    row = read_row(TESTS / "cases", check)
    with scratch_folder(0o755) as outputs:
        prepared(row, outputs)
        return run_row(tree, TESTS / "cases", row, outputs, identity).cpu_seconds


def rewards(verdicts, speedup, floor):
    """The flat map of reward.json."""
    scores = [verdict["score"] for verdict in verdicts.values()]
    passed = all(verdict["passed"] for verdict in verdicts.values())
    reward = round(sum(scores) / len(scores), 6)
    if CATEGORY == "acceleration":
        reward = max((share for least, share in SPEEDUP_LADDER if passed and speedup >= least), default=0.0)
    result = {"reward": reward, "floor": floor, "equivalence_pass": int(passed), "speedup": speedup if passed else 0.0}
    result["reward_repair"] = round(min(1.0, max(0.0, reward - floor) / max(1e-6, 1.0 - floor)), 6)
    if any(verdict["outcome"] == "grader_exception" for verdict in verdicts.values()):
        result["grader_error"] = 1
    return result | {f"check_{check.replace('-', '_')}": verdict["score"] for check, verdict in verdicts.items()}


if __name__ == "__main__":
    main()
