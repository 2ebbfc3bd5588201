"""E01-E16 and W01-W10 of one task, and what only the whole bank shows. Each check yields (code, detail); remedies are in the contract.

E13 is found on the nodes, W06 and W11 by the control plane: they are not facts of the files.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from runner.contract.bank import MenuEdit
from runner.contract.harbor import Container, host_problem, is_task_name
from runner.contract.repair import CATEGORIES, Finding, reward_key
from runner.repair import defects
from runner.repair.dockerfile import has_tmux, leaks
from runner.repair.hints import HintTooLong, hint_texts, location_of
from runner.repair.sources import PinnedSource
from runner.repair.task import Task, number, read_text, section

VERIFIER_BUDGET_S = 900.0
FLOOR_MAX = 0.65
FLOOR_TOLERANCE = 1e-6
TIMEOUT_FACTOR = 5
_TOKEN = re.compile(r"@[A-Z][A-Z0-9_]*@")
Found = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Context:
    """What the checks need beside the task: its pinned source, or why there is none that can be read, and lines found earlier."""

    source: PinnedSource | None = None
    source_problem: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)


def findings_of(task: Task, context: Context) -> list[Finding]:
    """Everything wrong with one task, by code. A task without a manifest has nothing else to check."""
    if task.manifest is None:
        return [Finding(code="E01", detail=task.problem)]
    found = {(code, detail) for check in CHECKS for code, detail in check(task, context)}
    return [Finding(code=code, detail=detail) for code, detail in sorted(found)]


# ---------------------------------------------------------------- manifest and texts
def name_of(task: Task, context: Context) -> Found:
    if not is_task_name(task.manifest.name):
        yield "E02", f"task.name is {task.manifest.name[:120]!r}"
    if task.manifest.has_steps:
        yield "E14", "task.toml has [[steps]]"


def instruction(task: Task, context: Context) -> Found:
    if task.raw_instruction is None:
        yield "E03", "instruction.md is missing, larger than 4 MiB, or not UTF-8"
    elif not task.instruction.strip():
        yield "E03", "instruction.md holds only a canary" if task.raw_instruction.strip() else "instruction.md is empty"
    elif token := _TOKEN.search(task.instruction):
        yield "E03", f"instruction.md has the unfilled token {token[0]}"


def taxonomy(task: Task, context: Context) -> Found:
    kind, found = task.manifest.taxonomy, task.found
    if found.category is not None and kind.category != found.category:
        yield "E06", f"the manifest says {kind.category!r}, the folder {found.category!r}"
    known = reward_key(kind.category) is not None and (kind.category or found.layout == "harbor")
    if not known:
        yield "E07", f"category {kind.category!r} is none of {', '.join(CATEGORIES)}"
    if (kind.difficulty or "unrated") == "unrated":
        yield "W01", f"basis: {kind.difficulty_basis or 'none'}"
    if not task.canary:
        yield "W10", "neither the manifest nor the provenance has one"


# ---------------------------------------------------------------- containers
def images(task: Task, context: Context) -> Found:
    manifest, folder = task.manifest, task.folder
    if not task.found.is_dense and not manifest.environment.docker_image:
        yield "E04", "the folder is sparse" if task.defect or task.fix else "there is no environment/Dockerfile"
        return
    has_script, has_image = (folder / "tests" / "test.sh").is_file(), (folder / "tests" / "Dockerfile").is_file()
    if manifest.verifier.mode == "separate":
        verifier_image = manifest.verifier.environment and manifest.verifier.environment.docker_image
        if not (has_script or has_image or verifier_image):
            yield "E05", "a separate verifier without tests/test.sh, tests/Dockerfile and docker_image"
    elif not has_script:
        yield "E05", "the verifier shares the agent's container, and there is no tests/test.sh"


def agent_image(task: Task, context: Context) -> Found:
    text = read_text(task.folder / "environment" / "Dockerfile")
    if text is None:
        return
    for path in leaks(task.folder / "environment", text):
        yield "E15", f"environment/Dockerfile copies {path}"
    if not has_tmux(text):
        yield "E16", "environment/Dockerfile does not name tmux"


def network(task: Task, context: Context) -> Found:
    manifest = task.manifest
    sections: list[tuple[str, Container]] = [("environment", manifest.environment)]
    if manifest.verifier.environment:
        sections.append(("verifier.environment", manifest.verifier.environment))
    hosts = [(where, part.network_mode, part.allowed_hosts) for where, part in sections]
    hosts.append(("agent", manifest.agent_network, manifest.agent.allowed_hosts or []))
    for where, mode, names in hosts:
        if names and mode != "allowlist":
            yield "E08", f"{where}.allowed_hosts with network_mode {mode!r}"
        yield from (("E08", f"{where}.allowed_hosts: {told}") for name in names if (told := host_problem(name)))
    if manifest.agent_network == "public" and manifest.taxonomy.category == "repair":
        yield "W05", "the agent's network_mode is public"


def times(task: Task, context: Context) -> Found:
    if task.manifest.verifier.timeout_sec > VERIFIER_BUDGET_S:
        yield (
            "W09",
            f"verifier.timeout_sec is {task.manifest.verifier.timeout_sec:g}, runs allow {VERIFIER_BUDGET_S:g} unless told otherwise",
        )
    for path, row in task.rows:
        limit, calibration = number(row.get("timeout_sec")), section(row, "reference_calibration")
        walls = calibration.get("wall_times_sec") if isinstance(calibration.get("wall_times_sec"), list) else []
        measured = [wall for wall in map(number, [*walls, calibration.get("mean_wall_sec")]) if wall is not None]
        if limit is not None and measured and limit < TIMEOUT_FACTOR * max(measured):
            yield "W04", f"{path}: timeout_sec {limit:g}, measured {max(measured):g} s"


# ---------------------------------------------------------------- defect, hints, floors
def defect(task: Task, context: Context) -> Found:
    unread = _unread_menu(task)
    yield from (("E10", told) for told in (*task.broken, *unread))
    if task.defect is None:
        needs_one = task.manifest.taxonomy.category in ("repair", "implementation")
        if needs_one and (task.fix is not None or not task.found.is_dense):
            yield "E10", "there is no defect.json"
        return
    misfit = context.source and defects.misfit(task.defect, context.source)
    if misfit:
        yield "E10", f"defect.json: {misfit}"
    elif context.source and not unread:
        yield from (("E10", told) for told in defects.menu_misfits(task.defect, task.menu, context.source))
    if task.fix is None:
        yield "E11", "there is no fix"
    elif told := _inverse(task, context):
        yield "E11", told


def _unread_menu(task: Task) -> list[str]:
    found = []
    for place, edit in enumerate(task.menu, 1):
        try:
            menu_edit(edit)
        except ValidationError as error:
            first = error.errors()[0]
            found.append(f"menu edit {place}: {'.'.join(map(str, first['loc']))}: {first['msg']}")
    return found


def menu_edit(edit: dict) -> MenuEdit:
    """An edit as the menu agent needs it; what else an author wrote beside it stays out. Raises ValidationError."""
    return MenuEdit.model_validate({name: edit[name] for name in MenuEdit.model_fields if name in edit})


def _inverse(task: Task, context: Context) -> str | None:
    try:
        return defects.not_inverse(task.defect, task.fix, context.source)
    except (defects.Refused, AttributeError, TypeError) as error:
        return f"it cannot be read: {error}"


def archive(task: Task, context: Context) -> Found:
    if context.source_problem:
        yield "E12", context.source_problem
    if context.source is None:
        return
    for where, expected in (
        ("task.toml", task.manifest.provenance.source_archive_sha256),
        ("provenance.json", section(task.provenance, "source").get("archive_sha256")),
    ):
        if expected and expected != context.source.sha256:
            yield "E12", f"{where} says {str(expected)[:12]}…, {context.source.name} is {context.source.sha256[:12]}…"


def hints(task: Task, context: Context) -> Found:
    location = location_of(task.provenance, resolved_line(task, context))
    try:
        hint_texts(location)
    except HintTooLong as error:
        yield "E09", str(error)
    if location and location.line is None and len(location.files) == 1:
        yield "W07", f"{location.files[0]}: {'no line recorded' if context.source is None else line_status(task, context)}"


def resolved_line(task: Task, context: Context) -> int | None:
    """The line on which the defect's text stands in the pinned source, None when that cannot be told."""
    if (known := context.lines.get(task.folder.name)) is not None:
        return known
    return defects.locate(defect_of(task), context.source)[0] if context.source else None


def line_status(task: Task, context: Context) -> str:
    """How looking for the defect's line went: ok, file_missing, no_match, ambiguous_<n>, no_edits or no_edit_fields."""
    return defects.locate(defect_of(task), context.source)[1] if context.source else "no_source"


def defect_of(task: Task) -> dict:
    """The change as the provenance tells it, else as the task carries it."""
    return section(task.provenance, "candidate", "break") or task.defect or {}


def floors(task: Task, context: Context) -> Found:
    native, container = floors_of(task)
    floor = container if container is not None else native
    if floor is not None and floor > FLOOR_MAX:
        yield "W02", f"the floor is {floor:g}"
    if None not in (native, container) and abs(native - container) > FLOOR_TOLERANCE:
        yield "W03", f"native {native:g}, container {container:g}"


def floors_of(task: Task) -> tuple[float | None, float | None]:
    """(native, container) floor, None where it was not recorded."""
    recorded = number(section(task.provenance, "funnel").get("floor"))
    native = recorded if recorded is not None and 0 <= recorded <= 1 else task.manifest.taxonomy.floor_native_estimate
    return native, task.manifest.facts.container_floor


def check_floors_of(task: Task) -> dict[str, float]:
    """What the straw scores at each check, named as verifiers report it; empty where it was not recorded, or the container's straw differs."""
    native, container = floors_of(task)
    if container is not None and (native is None or abs(native - container) > FLOOR_TOLERANCE):
        return {}
    recorded = {name: number(value) for name, value in section(task.provenance, "funnel", "floor_per_check").items()}
    return {name.replace("-", "_"): value for name, value in recorded.items() if value is not None and 0 <= value <= 1}


CHECKS: tuple[Callable[[Task, Context], Found], ...] = (
    *(name_of, instruction, taxonomy, images, agent_image),
    *(network, times, defect, archive, hints, floors),
)


# ---------------------------------------------------------------- the bank
def bank_findings(tasks: list[Task]) -> dict[str, list[Finding]]:
    """What only the whole bank shows, by task path: names used twice, clusters of near-duplicates."""
    named = [task for task in tasks if task.manifest is not None]
    uses = Counter(task.manifest.name for task in named)
    clusters = Counter(task.manifest.facts.near_duplicate_cluster for task in named)
    found = defaultdict(list)
    for task in named:
        if task.manifest.name and uses[task.manifest.name] > 1:
            found[task.found.path].append(Finding(code="E02", detail=f"{uses[task.manifest.name]} tasks are named {task.manifest.name!r}"))
        cluster = task.manifest.facts.near_duplicate_cluster
        if cluster is not None and clusters[cluster] > 1:
            found[task.found.path].append(Finding(code="W08", detail=f"cluster {cluster}, {clusters[cluster]} tasks"))
    return dict(found)
