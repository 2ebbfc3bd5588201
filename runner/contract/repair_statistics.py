"""What a bank of repair tasks is made of: counts, floors, hint coverage, findings. Each figure names how many tasks it is over."""

from collections import Counter, defaultdict
from typing import Any, Sequence

from runner.contract.bank import Task
from runner.contract.repair import BLOCKED, RULES, RepairPayload

COUNTED = ("env", "category", "family", "tree", "tier", "reward_key", "network_mode")
EXAMPLES = 20


def repair_statistics(records: Sequence[Task]) -> dict[str, Any]:
    """{tasks, runnable, blocked, counts: {column: {value: n}}, floors, hints, findings, bytes} of the records of one bank."""
    tasks = [RepairPayload.model_validate(record.payload) for record in records]
    blocked = sum(record.split == BLOCKED for record in records)
    return {
        "tasks": len(tasks),
        "runnable": len(tasks) - blocked,
        "blocked": blocked,
        "counts": {name: dict(sorted(Counter(getattr(task, name) for task in tasks).items())) for name in COUNTED},
        "floors": floors(tasks),
        "hints": hints(tasks),
        "findings": findings(records),
        "bytes": sum(task.bytes for task in tasks),
    }


def floors(tasks: Sequence[RepairPayload]) -> dict[str, Any]:
    """Over tasks with a recorded floor: their number, and the spread of what the unrepaired code scores."""
    known = [task.floor for task in tasks if task.floor_native is not None or task.floor_container is not None]
    spread = {"min": min(known), "mean": sum(known) / len(known), "max": max(known)} if known else {"min": None, "mean": None, "max": None}
    return {"n": len(known), **spread}


def hints(tasks: Sequence[RepairPayload]) -> dict[str, int]:
    """Over all tasks: how many have a hint, how many of those name a line, and how many lost it (W07)."""
    hinted = [task for task in tasks if task.hints]
    with_line = sum(task.hints.get("L1") != task.hints.get("L2") for task in hinted)
    return {"n": len(tasks), "hinted": len(hinted), "with_line": with_line, "degraded": sum(task.hint_degraded for task in hinted)}


def findings(records: Sequence[Task]) -> list[dict[str, Any]]:
    """By code: what it means, what to do, how many tasks have it, and some of them."""
    named = defaultdict(list)
    for record in records:
        for code in dict.fromkeys(item["code"] for item in record.payload["findings"]):
            named[code].append(record.key)
    return [
        {"code": code, "title": RULES[code].title, "remedy": RULES[code].remedy, "count": len(keys), "examples": sorted(keys)[:EXAMPLES]}
        for code, keys in sorted(named.items())
    ]
