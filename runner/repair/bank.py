"""A folder of tasks as the records of a bank version: checked, hinted, split, each naming its files by digest."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runner.contract import bank as contract
from runner.contract.repair import BLOCKED, TIERS, Finding, RepairPayload, is_blocked, reward_key
from runner.repair.env_file import InvalidEnvFile
from runner.repair.files import BadTaskFiles, TaskFiles, read_files
from runner.repair.hints import HintTooLong, Location, hint_texts, location_of
from runner.repair.layouts import Bank, Found
from runner.repair.sources import BadSource, PinnedSource, env_source, folder_source
from runner.repair.split import Stratum, split
from runner.repair.task import Task, load, parse_json, read_text, section
from runner.repair.validate import Context, bank_findings, check_floors_of, findings_of, floors_of, menu_edit, resolved_line

LINES_FILES = ("factory/DEFECT_LINES.json", "authoring/DEFECT_LINES.json")
Group = tuple[str, str, str]


@dataclass(frozen=True)
class Entry:
    """One task of a bank: what it is, what is wrong with it, and the files that the record names."""

    task: Task
    files: TaskFiles
    record: contract.Task

    @property
    def payload(self) -> RepairPayload:
        return RepairPayload.model_validate(self.record.payload)


@dataclass
class RepairBank:
    """The tasks of a folder as records, sorted by key. `untrained` are (group, stratum) that the split holds out whole."""

    found: Bank
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untrained: list[tuple[Group, Stratum]] = field(default_factory=list)


def read_bank(found: Bank) -> RepairBank:
    """Check every task, then split those that can run. Raises BadTaskFiles when a task's files cannot be kept."""
    tasks = [load(item) for item in found.tasks]
    shared, sources = bank_findings(tasks), Sources()
    bank = RepairBank(found, notes=list(found.notes))
    drafts = []
    for task in tasks:
        context = sources.context(task.found)
        findings = sorted((*findings_of(task, context), *shared.get(task.found.path, [])), key=lambda item: (item.code, item.detail))
        drafts.append((task, _files(task), _payload(task, context, findings)))
    bank.notes += sources.notes
    held_out, bank.untrained = _held_out(payload for _, _, payload in drafts)
    bank.entries = sorted((_entry(task, files, payload, held_out) for task, files, payload in drafts), key=lambda entry: entry.record.key)
    return bank


def _files(task: Task) -> TaskFiles:
    try:
        return read_files(task.folder)
    except BadTaskFiles as error:
        raise BadTaskFiles(f"{task.found.path}/{error}") from None


def _entry(task: Task, files: TaskFiles, payload: RepairPayload, held_out: frozenset[str]) -> Entry:
    payload = payload.model_copy(update={"task_digest": files.digest, "files": len(files.entries), "bytes": files.size})
    is_unnamed = any(finding.code in ("E01", "E02") for finding in payload.findings)
    # A task without a name of its own is stored under its path, so that its findings are.
    key = f"invalid:{task.found.path}"[:200] if is_unnamed else payload.name
    where = BLOCKED if is_blocked(payload.findings) else "eval" if payload.name in held_out else "train"
    record = contract.Task(
        key=key,
        split=where,
        domain=payload.env[:80],
        level=payload.tier[:40],
        family=payload.family[:120],
        payload=payload.model_dump(mode="json"),
        flags=sorted({finding.code for finding in payload.findings}),
    )
    return Entry(task, files, record)


def group_of(payload: RepairPayload) -> Group:
    """The dataset that a task belongs to; each is split by itself."""
    return payload.env, payload.category, payload.tier


def stratum_of(payload: RepairPayload) -> Stratum:
    return payload.category, payload.family, payload.tree


def _held_out(payloads: Iterator[RepairPayload]) -> tuple[frozenset[str], list[tuple[Group, Stratum]]]:
    groups = defaultdict(list)
    for payload in payloads:
        if not is_blocked(payload.findings):
            groups[group_of(payload)].append((payload.name, stratum_of(payload)))
    splits = {group: split(members) for group, members in sorted(groups.items())}
    untrained = [(group, stratum) for group, item in splits.items() for stratum in item.untrained]
    return frozenset(name for item in splits.values() for name in item.val), untrained


# ---------------------------------------------------------------- one task
def _payload(task: Task, context: Context, findings: list[Finding]) -> RepairPayload:
    unknown = "0" * 64
    if task.manifest is None:
        return RepairPayload(task_digest=unknown, name=task.found.path, env=task.found.env, findings=findings)
    manifest, kind = task.manifest, task.manifest.taxonomy
    native, container = floors_of(task)
    location = location_of(task.provenance, resolved_line(task, context))
    hints = _hints(location)
    return RepairPayload(
        task_digest=unknown,
        name=manifest.name,
        env=task.found.env,
        category=kind.category,
        family=kind.family or ("accel" if kind.category == "acceleration" else ""),
        tree=kind.tree or ("both" if kind.category == "acceleration" else ""),
        tier=kind.difficulty if kind.difficulty in TIERS else "unrated",
        mode=kind.mode,
        reward_key=reward_key(kind.category, manifest.environment.gpus) or "reward",
        instruction=task.instruction,
        description=manifest.description,
        canary=task.canary,
        checks=_checks(task),
        floor=next((floor for floor in (container, native) if floor is not None), 0.0),
        floor_native=native,
        floor_container=container,
        gpus=manifest.environment.gpus,
        cpus=manifest.environment.cpus,
        memory_mb=manifest.environment.memory_mb,
        network_mode=manifest.agent_network,
        allowed_hosts=manifest.agent_hosts,
        verifier_mode=manifest.verifier.mode,
        timeout_sec=manifest.agent.timeout_sec,
        verifier_timeout_sec=manifest.verifier.timeout_sec,
        build_timeout_sec=manifest.environment.build_timeout_sec,
        verifier_build_timeout_sec=manifest.verifier_container.build_timeout_sec,
        hints=hints,
        hint_degraded=bool(hints) and location.line is None and len(location.files) == 1,
        menu=_menu(task),
        near_duplicate=str(manifest.facts.near_duplicate_cluster or ""),
        facts=_facts(task),
        findings=findings,
    )


def _hints(location: Location | None) -> dict[str, str]:
    try:
        return hint_texts(location)
    except HintTooLong:
        return {}


def _facts(task: Task) -> dict[str, Any]:
    told = {"basis": task.manifest.taxonomy.difficulty_basis, "floor_per_check": check_floors_of(task)}
    return task.manifest.facts.model_dump(mode="json", exclude_defaults=True) | {name: value for name, value in told.items() if value}


def _checks(task: Task) -> list[str]:
    """The provenance's checks, else the manifest's, else the folders under environment/checks."""
    recorded = task.provenance.get("checks")
    if isinstance(recorded, list) and recorded and all(isinstance(name, str) for name in recorded):
        return recorded
    folder = task.folder / "environment" / "checks"
    return task.manifest.taxonomy.affected_checks or (
        sorted(item.name for item in folder.iterdir() if item.is_dir()) if folder.is_dir() else []
    )


def _menu(task: Task) -> list[contract.MenuEdit]:
    try:
        return [menu_edit(edit) for edit in task.menu]
    except ValidationError:
        return []  # told by E10


# ---------------------------------------------------------------- sources
class Sources:
    """The pinned source of each task's environment; the same archive is opened once, however many tasks carry a copy."""

    def __init__(self):
        self._contexts: dict[Path, Context] = {}
        self._opened: dict[tuple[str, str], PinnedSource] = {}
        self.notes: list[str] = []

    def context(self, found: Found) -> Context:
        """The source beside a dense task's Dockerfile, else the one that its environment declares."""
        beside = found.folder / "environment" / "source"
        place = beside if beside.is_dir() else found.env_folder
        if place is None:
            return Context()
        if place not in self._contexts:
            self._contexts[place] = self._open(place, place == beside, found.env_folder)
        return self._contexts[place]

    def _open(self, place: Path, is_beside: bool, env_folder: Path | None) -> Context:
        lines = resolved_lines(env_folder) if env_folder else {}
        try:
            source = folder_source(place) if is_beside else env_source(place)
        except (BadSource, BadTaskFiles) as error:
            return Context(source_problem=str(error), lines=lines)
        except InvalidEnvFile as error:
            self.notes.append(str(error))
            return Context(lines=lines)
        return Context(source and self._opened.setdefault((source.name, source.sha256), source), lines=lines)


def resolved_lines(env_folder: Path) -> dict[str, int]:
    """{task: line} of an environment's DEFECT_LINES.json, empty when it has none."""
    for name in LINES_FILES:
        document = parse_json(read_text(env_folder / name))
        if document is not None:
            return {task: line for task, line in section(document, "resolved").items() if isinstance(line, int) and line > 0}
    return {}
