"""Small repair banks, their files in the store."""

from controlplane import storage
from controlplane.banks.services import import_version
from runner.contract.bank import Task, write_bank
from runner.contract.repair import FileEntry, Finding, RepairPayload, is_blocked, write_listing

FILES = {"task.toml": b"[task]", "tests/test.sh": b"#!/bin/sh\n", "instruction.md": b"Mend it."}


def store_task(files: dict[str, bytes]) -> str:
    """Put a task's files into the store; returns the task's digest."""
    entries = [FileEntry(path, path.endswith(".sh"), storage.put(content)) for path, content in files.items()]
    return storage.put(write_listing(entries))


def repair_task(name: str, codes=(), split: str = "train", files: dict[str, bytes] | None = None, **fields) -> Task:
    """A record whose files are in the store; `codes` are its findings."""
    findings = [Finding(code=code, detail=f"detail of {code} <b>") for code in codes]
    stored = store_task({**FILES, "name": name.encode(), **(files or {})})
    given = {"category": "repair", "family": "sign", "tier": "easy", "env": "heat", "floor_native": 0.35, "floor": 0.35} | fields
    payload = RepairPayload(task_digest=stored, name=name, findings=findings, files=4, bytes=60, **given)
    split = "blocked" if is_blocked(findings) else split
    columns = {"domain": payload.env, "level": payload.tier, "family": payload.family, "flags": sorted(set(codes))}
    return Task(key=name, split=split, payload=payload.model_dump(mode="json"), **columns)


def three_tasks() -> list[Task]:
    return [repair_task("demo/a"), repair_task("demo/b", split="eval", family="coef"), repair_task("demo/c", codes=("E04", "W01"))]


def repair_version(team, user, tasks: list[Task] | None = None, slug: str = "repair"):
    """An imported version: `a` trains, `b` is held out, `c` is blocked."""
    return import_version(team, slug, write_bank(tasks or three_tasks())[0], {}, user, "harbor")
