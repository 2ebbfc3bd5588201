"""One record of a measurement: printed as a JSON line, and kept in `records/` with the machine it was taken on."""

import json
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path

import psutil

RECORDS = Path(__file__).parent / "records"
# Read when the benchmark is imported: later it would count the benchmark itself.
LOAD_AT_START = round(os.getloadavg()[0], 2)


def machine() -> dict:
    """What a figure was taken on; nothing that names the machine itself."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": LOAD_AT_START,
        "nice": os.nice(0),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def record(name: str, ours: float, peer: float | None, unit: str, settings: dict, also: dict, *, lower_is_better: bool = False) -> dict:
    """A measurement. `ratio` says how many times better ours is than the peer's; None where there is no peer."""
    ratio = None if not peer or not ours else (peer / ours if lower_is_better else ours / peer)
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        "ratio": ratio and round(ratio, 2),
        "unit": unit,
        "settings": settings,
        "also": also,
        "machine": machine(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def publish(found: dict, folder: Path = RECORDS) -> dict:
    """Prints the record as one line and appends it to `folder`/NAME.json, newest last."""
    path = folder / f"{found['name']}.json"
    folder.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*kept, found], indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(found), flush=True)
    return found


def medians(repetitions: list[dict]) -> dict:
    """The repetitions of one measurement as one: numbers become their median, maps are joined key by key, all else is the first's."""
    first = repetitions[0]
    return {key: _median([repetition[key] for repetition in repetitions]) for key in first}


def _median(values: list):
    if isinstance(values[0], dict):
        return medians(values)
    if isinstance(values[0], bool) or not isinstance(values[0], int | float):
        return values[0]
    middle = statistics.median(values)
    return round(middle, 4) if isinstance(middle, float) else middle
