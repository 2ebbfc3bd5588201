"""Every kind of death at every moment of a run, outages, stops: how soon the state is true again, and that nothing is lost.

./assay prove kills [matrix|stops|outages|emitter …] [--kinds A,B] [--points A,B] [--minutes N]

One house serves all of it. A cell of the matrix is a run of its own: reach the moment, kill -9, wait until the state is true (at most
60 s) and the run goes on, stop it, then compare what its drivers wrote down with what the control plane has. `--minutes` is the length of
the two long outages. The figures go to `records/kills.json`; any broken promise ends the proof with status 1.
"""

import argparse
import sys
import time
from dataclasses import asdict, replace
from functools import partial

from benchmarks.prove._outages import broker_flushed, database_away, emitter_hung, emitter_without_api, web_away
from benchmarks.record import publish, record
from tests.chaos.house import ChaosHouse, held_slots, until
from tests.chaos.kills import DOCUMENT, KINDS, POINTS, Figures, Kind, reach, stop_and_settle, strike, verdict

SECTIONS = ("matrix", "stops", "outages", "emitter")
STOPS = ("starting", "evaluating", "sft", "checkpoint", "grpo")


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    found: dict[str, dict] = {}
    if {"matrix", "stops", "outages"} & set(options.sections):
        house = ChaosHouse()
        try:
            found |= on_a_house(house, options)
        finally:
            house.end()
    if "emitter" in options.sections:
        found["emitter"] = {
            "close with a hung API": attempt(emitter_hung),
            "API away": attempt(partial(emitter_without_api, options.minutes * 60)),
        }
    broken = [f"{section}: {name}: {cell['broken']}" for section, cells in found.items() for name, cell in cells.items() if cell["broken"]]
    slowest = max((cell.get("true_s") or 0.0 for cells in found.values() for cell in cells.values()), default=0.0)
    settings = {"sections": options.sections, "minutes": options.minutes, "document": DOCUMENT}
    publish(
        record("kills", slowest, None, "s until the state is true, at worst", settings, {**found, "broken": broken}, lower_is_better=True)
    )
    if broken:
        sys.exit("\n".join(broken))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="assay prove kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(str.split, sep=",")
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--kinds", type=names, default=list(KINDS), help=f"of the matrix: {', '.join(KINDS)}")
    parser.add_argument("--points", type=names, default=list(POINTS), help=f"of the matrix: {', '.join(POINTS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the web process, and the API of an emitter, are away")
    options = parser.parse_args(arguments)
    for given, known in ((options.sections, SECTIONS), (options.kinds, KINDS), (options.points, POINTS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return options


def on_a_house(house: ChaosHouse, options: argparse.Namespace) -> dict[str, dict]:
    found: dict[str, dict] = {}
    if "matrix" in options.sections:
        cells = [(KINDS[kind], point) for kind in options.kinds for point in options.points]
        found["matrix"] = {
            f"{kind.name} · {point}": told(kind.name, point, attempt(partial(one_kill, house, kind, point))) for kind, point in cells
        }
    if "stops" in options.sections:
        found["stops"] = {point: told("stop", point, attempt(partial(one_stop, house, point))) for point in STOPS}
    if "outages" in options.sections:
        outages = {
            "web away": partial(web_away, seconds=options.minutes * 60),
            "database away": database_away,
            "broker flushed": broker_flushed,
        }
        found["outages"] = {name: told("outage", name, attempt(partial(one_outage, house, outage))) for name, outage in outages.items()}
    return found


def attempt(proof) -> dict:
    """The figures of one proof; `broken` says which promise did not hold."""
    try:
        return {"broken": "", **proof()}
    except Exception as error:  # the other cells are still to be tried
        return {"broken": f"{type(error).__name__}: {error}"}


def told(kind: str, point: str, cell: dict) -> dict:
    print(f"{time.strftime('%H:%M:%S')} {kind:>15} · {point:<15} {cell}", file=sys.stderr, flush=True)
    return cell


def one_kill(house: ChaosHouse, kind: Kind, point: str) -> dict:
    run = house.launch(DOCUMENT)
    try:
        reach(house, run, point)
        # While its gang is being built a run has nothing to go on with: a lost worker ends the attempt.
        kind = replace(kind, fatal=None) if kind.name == "rollout worker" and point in ("starting", "evaluating") else kind
        figures: Figures = strike(house, run, kind, stopping=point == "stopping")
    finally:
        stop_and_settle(house, run)
    settled(house, run)
    return {f"{name}_s": value and round(value, 1) for name, value in asdict(figures).items() if name in ("true", "running")}


def one_stop(house: ChaosHouse, point: str) -> dict:
    run = house.launch(DOCUMENT)
    reach(house, run, point)
    asked = time.time()
    house.stop(run)
    until(lambda: house.state(run) == "stopped", "the run is stopped", 150.0)
    stopped = time.time()
    until(lambda: not held_slots(house, run), "its slots are free, or quarantined with a reason")
    free = time.time()
    settled(house, run)
    return {"true_s": round(stopped - asked, 1), "free_s": round(free - stopped, 1)}


def one_outage(house: ChaosHouse, outage) -> dict:
    run = house.launch(DOCUMENT)
    try:
        reach(house, run, "sft")
        figures = outage(house, run)
    finally:
        stop_and_settle(house, run)
    settled(house, run)
    return figures


def settled(house: ChaosHouse, run: str) -> None:
    stop_and_settle(house, run)
    wrong = verdict(house, run)
    assert not wrong, "; ".join(wrong[:5])
