"""Parquet datasets of a dense bank, in the published layout: the same partition at every hint level.

DATA/<env>/<category>_<tier>/train/{L1,L2,L3}.parquet   eval/{L1,L2,unhinted}.parquet   all/{L1,L2,L3}.parquet
                             stats/{L1,L2,L3}.json      split.json
"""

import hashlib
import json
import random
import shutil
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.contract.repair import HINT_LEVELS, HintLevel, RepairPayload, is_blocked
from runner.repair.bank import Entry, RepairBank, stratum_of
from runner.repair.files import BadTaskFiles, read_files
from runner.repair.split import GROUP_KEY, split

SHUFFLE_SEED = 20260828
DATA_SOURCE = "scienceide_rl"
DEFAULT_TIMEOUT_S = 3600.0

_TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))),
        ("data_source", _TEXT),
        ("reward_model", pa.struct([("style", _TEXT), ("ground_truth", _TEXT)])),
        *((name, _TEXT) for name in ("task_name", "category", "family", "tree")),
        ("floor", pa.float64()),
        (
            "extra_info",
            pa.struct(
                [
                    *((name, _TEXT) for name in ("task_path", "reward_key", "task_name", "hint", "hint_level")),
                    ("timeout_sec", pa.float64()),
                    ("gpus", pa.int64()),
                    *((name, _TEXT) for name in ("category", "family", "tree", "mode")),
                    ("floor", pa.float64()),
                    ("checks", pa.list_(_TEXT)),
                    ("network_mode", _TEXT),
                ]
            ),
        ),
        *((name, _TEXT) for name in ("task_digest", "bank_commit", "hint_sha256")),
    ]
)


class DatasetRefused(ValueError):
    """The dataset cannot be built; the message names the tasks and the remedy."""


def write_dataset(
    bank: RepairBank,
    data: Path,
    env: str,
    categories: tuple[str, ...] = ("repair",),
    tier: str = "easy",
    val_per_group: int = 1,
    commit: str = "",
) -> Path:
    """Write the dataset of one environment, whole or not at all; returns its folder. Raises DatasetRefused."""
    entries = _selected(bank, env, categories, tier)
    folder = data / env / f"{'-'.join(categories)}_{tier}"
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        _write(
            entries, partial, {"env": env, "categories": list(categories), "difficulty": tier}, val_per_group, str(bank.found.root), commit
        )
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _selected(bank: RepairBank, env: str, categories: tuple[str, ...], tier: str) -> list[Entry]:
    wanted = [
        entry for entry in bank.entries if (found := entry.payload).env == env and found.category in categories and found.tier == tier
    ]
    if not wanted:
        groups = sorted({f"{found.env} {found.category} {found.tier}" for entry in bank.entries if (found := entry.payload)})
        raise DatasetRefused(f"no {tier} task of {env} in {', '.join(categories)}; the bank has: {'; '.join(groups)}")
    broken = [entry for entry in wanted if is_blocked(entry.payload.findings)]
    if broken:
        told = "; ".join(f"{entry.record.key}: {', '.join(entry.record.flags)}" for entry in broken[:5])
        raise DatasetRefused(f"{len(broken)} of {len(wanted)} tasks cannot run ({told}); mend them first, E04 by compiling the bank")
    return sorted(wanted, key=lambda entry: entry.record.key)


def _write(entries: list[Entry], folder: Path, selection: dict, val_per_group: int, repo: str, commit: str) -> None:
    held_out = split(((entry.payload.name, stratum_of(entry.payload)) for entry in entries), val_per_group).val
    train = [entry for entry in entries if entry.record.key not in held_out]
    val = [entry for entry in entries if entry.record.key in held_out]
    random.Random(SHUFFLE_SEED).shuffle(train)
    for level in HINT_LEVELS:
        _write_rows(train, level, folder / "train" / f"{level}.parquet", commit)
        _write_rows(entries, level, folder / "all" / f"{level}.parquet", commit)
        _write_rows(val, level, folder / "eval" / f"{'unhinted' if level == 'L3' else level}.parquet", commit)
        stats = statistics(entries, level) | {
            "repo": repo,
            "env": selection["env"],
            "hint_level": level,
            "n_train": len(train),
            "n_val": len(val),
        }
        _write_json(folder / "stats" / f"{level}.json", stats)
    _write_json(folder / "split.json", selection | {"val_per_group": val_per_group, "group_key": list(GROUP_KEY), "val": list(held_out)})


def _write_rows(entries: list[Entry], level: HintLevel, path: Path, commit: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row(entry, level, commit) for entry in entries], schema=SCHEMA), path)


def _write_json(path: Path, document: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def row(entry: Entry, level: HintLevel, commit: str = "") -> dict:
    """One dataset row. `prompt` documents what the agent is told; what counts is the instruction on disk and the hint."""
    task, hint = entry.payload, entry.payload.hints.get(level, "")
    shared = {
        "task_name": task.name,
        "category": task.category,
        "family": task.family,
        "tree": task.tree,
        "floor": task.floor_native or 0.0,
    }
    return shared | {
        "prompt": [{"role": "user", "content": f"{task.instruction}\n\n{hint}" if hint else task.instruction}],
        "data_source": DATA_SOURCE,
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": shared
        | {
            "task_path": str(entry.files.folder.resolve()),
            "reward_key": task.reward_key,
            "hint": hint,
            "hint_level": level,
            "timeout_sec": task.timeout_sec or DEFAULT_TIMEOUT_S,
            "gpus": task.gpus,
            "mode": task.mode,
            "checks": task.checks,
            "network_mode": task.network_mode,
        },
        "task_digest": task.task_digest,
        "bank_commit": commit,
        "hint_sha256": hashlib.sha256(hint.encode()).hexdigest(),
    }


def statistics(entries: list[Entry], level: HintLevel) -> dict:
    """{n_tasks, n_hinted, by_category, by_reward_key, by_group}; a group is "category/family/tree": {n_tasks, floor_…, reward_key}."""
    tasks = [entry.payload for entry in entries]
    groups = defaultdict(list)
    for task in tasks:
        groups["/".join(stratum_of(task))].append(task)
    return {
        "n_tasks": len(tasks),
        "n_hinted": sum(bool(task.hints.get(level)) for task in tasks),
        "by_category": dict(sorted(Counter(task.category for task in tasks).items())),
        "by_reward_key": dict(sorted(Counter(task.reward_key for task in tasks).items())),
        "by_group": {name: _group(members) for name, members in sorted(groups.items())},
    }


def _group(tasks: list[RepairPayload]) -> dict:
    floors = [task.floor_native or 0.0 for task in tasks]
    spread = {"floor_min": min(floors), "floor_max": max(floors), "floor_mean": sum(floors) / len(floors)}
    return {"n_tasks": len(tasks), **spread, "reward_key": sorted({task.reward_key for task in tasks})}


def stale_rows(path: Path) -> dict[str, str]:
    """E13: {task: what is wrong} of the rows whose folder is gone, or holds other files than when the dataset was built."""
    found = {}
    for item in pq.read_table(path).to_pylist():
        folder = Path(item["extra_info"]["task_path"])
        try:
            digest = read_files(folder).digest if folder.is_dir() else None
        except BadTaskFiles as error:
            found[item["task_name"]] = f"E13: {error}"
            continue
        if digest is None:
            found[item["task_name"]] = f"E13: {folder} no longer exists; build the dataset again"
        elif digest != item["task_digest"]:
            found[item["task_name"]] = (
                f"E13: {folder} has the digest {digest[:12]}, the dataset was built from {item['task_digest'][:12]}; build it again"
            )
    return found
