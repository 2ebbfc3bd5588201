"""Writes env/cases/<check>/row.json, env/validation/<check>/{rubric.json,validate.py} and env/source/source.json."""

import importlib.util
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from runner.contract.canonical import digest
from runner.environments.repair_bank import BANK
from runner.environments.repair_bank.factory.catalogue import Catalogue
from runner.environments.repair_bank.factory.workbench import Workbench
from runner.repair.sources import pack_source

NUMBER = re.compile(r"[-+]?\d+\.\d+[eE][-+]\d+")
VALIDATE = '''"""The verdict on {check}: its frames, point by point, against those of the reference build (rubric.json beside this file)."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from frames import validate_frames


def validate(reference_dirs, candidate_dirs):
    """Both map each deck's id to its folder of frames. Returns {{"passed", "outcome", "frames_ok", "frames_scored", ...}}."""
    return validate_frames(json.loads((HERE / "rubric.json").read_text()), reference_dirs, candidate_dirs)
'''


def write_checks(catalogue: Catalogue, bench: Workbench) -> None:
    """Write the files of every check. A calibration stays while source and decks stay, so that nothing but change changes files."""
    source = pack_source(catalogue.source)
    _write_source(catalogue, source)
    for name, check in catalogue.checks.items():
        row = _row(catalogue, check)
        path = catalogue.folder / "env" / "cases" / name / "row.json"
        row["provenance"] = {"source_sha256": digest(source), "reference": "made by the clean build inside the verifier's image"}
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            runs = Path(first), Path(second)
            walls = [_run(catalogue, bench, row, place) for place in runs]
            rubric = _rubric(catalogue, check, _frames(row, runs[0]))
            _require_conforming(row, rubric, *runs)
            row["reference_calibration"] = _on_file(path, row) or _calibration(rubric, walls, *runs)
        _write_json(path, row)
        folder = catalogue.folder / "env" / "validation" / name
        _write_json(folder / "rubric.json", rubric)
        (folder / "validate.py").write_text(VALIDATE.format(check=name))


def _write_source(catalogue: Catalogue, packed: bytes) -> None:
    members = sorted(path.relative_to(catalogue.source).as_posix() for path in catalogue.source.rglob("*") if path.is_file())
    document = {
        "archive": "source.tar",
        "archive_bytes": len(packed),
        "archive_members": members,
        "archive_sha256": digest(packed),
        "commit": catalogue.env_file.source.commit,
        "license": "as this project",
        "origin": f"written for this project: runner/environments/repair_bank/envs/{catalogue.env}/env/source/{catalogue.env}",
        "release": "1.0",
    }
    _write_json(catalogue.folder / "env" / "source" / "source.json", document)


def _row(catalogue: Catalogue, check: dict[str, Any]) -> dict[str, Any]:
    cases = catalogue.folder / "env" / "cases" / check["name"]
    decks = [
        {"id": Path(deck).stem, "input": deck, "frame": "frame*.txt", "sha256": digest((cases / deck).read_bytes())}
        for deck in check["decks"]
    ]
    return {
        "version": 1,
        "check": check["name"],
        "about": check["about"],
        "build": catalogue.target(catalogue.tree_of(check["name"])),
        "decks": decks,
        "ranks": 1,
        "timeout_sec": catalogue.checks_file["timeout_sec"],
    }


def _rubric(catalogue: Catalogue, check: dict[str, Any], frames: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "version": 1,
        "check": check["name"],
        "about": check["about"],
        "policy": "pointwise-all-evolution-frames",
        "output_contract": {"frames": frames},
        "tolerances": catalogue.checks_file["tolerance"],
        "canonicalization": {"wall_timestamp_regexes": []},
        "diagnostics": check["diagnostics"],
    }


def _frames(row: dict[str, Any], outputs: Path) -> dict[str, list[str]]:
    return {deck["id"]: sorted(frame.name for frame in (outputs / deck["id"]).glob("frame*.txt")) for deck in row["decks"]}


def _require_conforming(row: dict[str, Any], rubric: dict[str, Any], first: Path, second: Path) -> None:
    """A reference that its own validator refuses would fail every answer. Raises ValueError."""
    spec = importlib.util.spec_from_file_location("bank_frames", BANK / "shared" / "checks" / "frames.py")
    frames = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(frames)
    verdict = frames.validate_frames(rubric, *({deck["id"]: place / deck["id"] for deck in row["decks"]} for place in (first, second)))
    if not verdict["passed"]:
        raise ValueError(f"{row['check']}: the clean build does not pass against itself: {verdict['outcome']} {verdict['detail']}")


def _calibration(rubric: dict[str, Any], walls: list[float], first: Path, second: Path) -> dict[str, Any]:
    """What two runs of the clean build say of time and repeatability."""
    frames = rubric["output_contract"]["frames"]
    pairs = [((first / deck / name).read_text(), (second / deck / name).read_text()) for deck in frames for name in frames[deck]]
    drift = max(abs(float(a) - float(b)) for old, new in pairs for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True))
    return {
        "mean_wall_sec": round(sum(walls) / 2, 4),
        "wall_times_sec": [round(wall, 4) for wall in walls],
        "nondeterminism": {"scored_bytes_identical": all(old == new for old, new in pairs), "worst_numeric_abs_drift": drift},
    }


def _on_file(path: Path, row: dict[str, Any]) -> dict[str, Any] | None:
    known = json.loads(path.read_text()) if path.is_file() else {}
    return (
        known.get("reference_calibration") if {**known, "reference_calibration": None} == {**row, "reference_calibration": None} else None
    )


def _run(catalogue: Catalogue, bench: Workbench, row: dict[str, Any], outputs: Path) -> float:
    start = time.perf_counter()
    for deck in row["decks"]:
        (outputs / deck["id"]).mkdir()
        case = catalogue.folder / "env" / "cases" / row["check"] / deck["input"]
        argv = [bench.clean / "build" / row["build"], case, outputs / deck["id"]]
        subprocess.run(argv, cwd=bench.clean, check=True, timeout=row["timeout_sec"])
    return time.perf_counter() - start


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
