"""An hour of watching: 20 emitters, 2,000 points a second, 200 sockets, and one real run where Ray is; memory, lag and errors stay put.

    ./assay prove soak [MINUTES] [--real]      60 minutes by default; --real trains the sample run beside it on a Ray of its own

The house is that of `./assay up`: web, worker, beat, broker, durable Postgres. Each emitter is the runner's own, with its disk spool, in
one process for all of them; each socket follows twelve series of one run, as a page with twelve charts does.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import real_run
from benchmarks.ingest import make_attempt
from benchmarks.record import publish, record
from benchmarks.server import Server, serving
from benchmarks.sockets import Crowd, Watched, percentiles

EMITTERS, SERIES, STEPS_A_SECOND, SOCKETS, CHARTED = 20, 100, 1, 200, 12
MINUTES, SAMPLE_S, WINDOW = 60.0, 15.0, 0.15
CATCH_UP_S = 60.0
GROWTH, LAG_S, HEAP_MB = 0.05, 2.0, 150
SERVICES = ("web", "worker", "bulk", "postgres")
ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL|PANIC)\b|Traceback")
NAMES = tuple(f"metric/{index}" for index in range(SERIES))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="assay prove soak")
    parser.add_argument("minutes", type=float, nargs="?", default=MINUTES)
    parser.add_argument("--real", action="store_true", help="train the sample run beside it, on a Ray of its own")
    parser.add_argument("--sockets", type=int, default=SOCKETS)
    options = parser.parse_args(arguments)
    found = publish(measure(options.minutes, options.sockets, real=options.real))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: the soak does not hold: {'; '.join(broken)}")


def measure(minutes: float = MINUTES, sockets: int = SOCKETS, *, real: bool = False) -> dict:
    """The record; `broken` names every figure that does not hold."""
    with serving(background=True, ray=real) as server, tempfile.TemporaryDirectory() as folder:
        run = real_run.launch_sample(server, 300, 10**6, "Sample, as long as the soak") if real else None
        attempts = [make_attempt(f"emitter {index}") for index in range(EMITTERS)]
        found = asyncio.run(soak(server, server.session(), Path(folder), attempts, round(60 * minutes), sockets))
        found["real_run"] = dict(zip(("state", "step", "reason"), real_run.state(run), strict=True)) if run else None
        found["refused"] = refused(attempts, round(60 * minutes) * STEPS_A_SECOND)
        found["errors"] = errors_in(server.house.home / "logs")
    found["broken"] = broken(found)
    settings = {
        "minutes": minutes,
        "emitters": EMITTERS,
        "points_a_second": EMITTERS * SERIES * STEPS_A_SECOND,
        "sockets": sockets,
        "series_a_socket": CHARTED,
        "real_run": "the sample preset, lengthened" if real else "none",
        "memory": f"anonymous resident memory of each service's processes, medians of {WINDOW:.0%} of the time: after as much, and at the end",
        "target": f"growth under {GROWTH:.0%}, p95 lag under {LAG_S:g} s, 0 steps missing, 0 errors, page heap at most {HEAP_MB} MB",
    }
    return record("soak", found["lag"]["p95_s"], None, "s, p95 lag", settings, found, lower_is_better=True)


async def soak(server: Server, session: str, folder: Path, attempts: list, seconds: int, sockets: int) -> dict:
    watched = [Watched(str(attempts[index % EMITTERS].run_id), 0, NAMES[:CHARTED]) for index in range(sockets)]
    steps = seconds * STEPS_A_SECOND
    async with Crowd(server.url, f"sessionid={session}", watched) as crowd:
        keys = [(attempt.pk, attempt.token) for attempt in attempts]
        emitting = _spawn(emit, server.url, keys, steps)
        looking = _spawn(look, server.url, session, watched[0].run, seconds, folder / "page.json")
        memory = []
        while emitting.is_alive():
            memory.append(await asyncio.to_thread(anonymous_mib, server))
            await asyncio.sleep(min(SAMPLE_S, seconds / 40))
        emitted = dict.fromkeys((one.run for one in watched), steps)
        await crowd.wait_for_all(emitted, CATCH_UP_S)
        await asyncio.to_thread(looking.join)
        return {
            "lag": percentiles(crowd.lags),
            "steps_missing": crowd.missing(emitted),
            **{name: crowd.count(name) for name in ("repeated", "resets", "losses")},
            "emitters_exit": emitting.exitcode,
            "memory": {name: growth([row[name] for row in memory]) for name in SERVICES},
            "resident_with_shared_mib": server.memory_mib(),
            "page": json.loads((folder / "page.json").read_text()) if looking.exitcode == 0 else None,
        }


def _spawn(target, *arguments):
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


# ---------------------------------------------------------------- the load
def emit(url: str, keys: list[tuple[int, str]], steps: int) -> None:
    """Twenty training loops that only report, a step a second each, spread over the second."""
    from runner.reporting.emitter import Emitter

    with tempfile.TemporaryDirectory() as folder:
        emitters = [
            Emitter(Path(folder) / str(attempt), "driver", url=f"{url}/api/ingest/{attempt}/batches", token=token)
            for attempt, token in keys
        ]
        began, apart = time.monotonic(), 1 / (STEPS_A_SECOND * len(emitters))
        for step in range(steps):
            for index, emitter in enumerate(emitters):
                due = began + step / STEPS_A_SECOND + index * apart
                time.sleep(max(0.0, due - time.monotonic()))
                emitter.emit_points(step, dict.fromkeys(NAMES, float(step)))
        delivered = [emitter.close(CATCH_UP_S) for emitter in emitters]
        if not all(delivered) or any(emitter.dropped for emitter in emitters):
            raise SystemExit(1)


def look(url: str, session: str, run: str, seconds: int, result: Path) -> None:
    """One real page on a run for all the time; its footprints go to `result`."""
    from benchmarks.browser import chromium_at, watch

    with chromium_at(url, session) as chromium, chromium.page() as page:
        chromium.open(page, f"/runs/{run}")
        page.click(".groups details summary", timeout=120_000)  # the groups appear with the first names
        result.write_text(json.dumps(watch(page, seconds * 0.95, max(5, seconds / 20))))


# ---------------------------------------------------------------- what must hold
def anonymous_mib(server: Server) -> dict[str, float]:
    """Of each service with its children. Shared buffers, which Postgres fills up to a fixed size, are not in it."""
    return {name: round(sum(map(_anonymous_bytes, pids)) / 2**20, 1) for name, pids in server.processes().items() if name in SERVICES}


def _anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def growth(rows: list[float]) -> dict:
    """The medians of two windows of the time, each WINDOW of it long: after the first, and the last."""
    size = max(1, round(WINDOW * len(rows)))
    early, late = statistics.median(rows[size : 2 * size] or rows), statistics.median(rows[-size:])
    return {"early_mib": early, "late_mib": late, "share": round((late - early) / early, 4) if early else None}


def refused(attempts: list, steps: int) -> dict[str, int]:
    """Points that are missing in the database, that came twice, and batches that were refused."""
    from controlplane.runs.models import Attempt

    rows = Attempt.objects.filter(pk__in=[attempt.pk for attempt in attempts])
    counts = list(rows.values_list("points_accepted", "points_repeated", "points_conflicting", "batches_refused"))
    accepted, repeated, conflicting, batches = map(sum, zip(*counts, strict=True))
    return {"points_missing": EMITTERS * SERIES * steps - accepted, "repeated": repeated, "conflicting": conflicting, "batches": batches}


def errors_in(logs: Path) -> list[str]:
    """The first lines of every log that say that something failed."""
    found = []
    for log in sorted(logs.glob("*.log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if ERROR.search(line)]
        found += [f"{log.stem}: {line[:160]}" for line in lines[:3]]
    return found


def broken(found: dict) -> list[str]:
    """Every figure that does not hold, in words."""
    said = [f"{name} grew by {one['share']:.1%}" for name, one in found["memory"].items() if one["share"] and one["share"] >= GROWTH]
    if found["lag"]["p95_s"] is None or found["lag"]["p95_s"] >= LAG_S:
        said.append(f"p95 lag {found['lag']['p95_s']} s")
    said += [f"{found[name]} {name}" for name in ("steps_missing", "resets", "losses", "emitters_exit") if found[name]]
    said += [f"{count} {name}" for name, count in found["refused"].items() if count]
    said += found["errors"]
    if found["page"] is None:
        said.append("no page was watched")
    elif (heap := found["page"][-1]["heap_mb"]) > HEAP_MB:
        said.append(f"the page's heap is {heap} MB")
    if found["real_run"] and found["real_run"]["state"] != "active":
        said.append(f"the real run is {found['real_run']['state']}: {found['real_run']['reason']}")
    return said
