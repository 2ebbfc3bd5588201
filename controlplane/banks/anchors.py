"""The anchor gate of a repair bank: record what oracle and nop earned, fold it into a state, quarantine what is broken.

The rule is in runner.contract.anchors. A result holds for a task's files, so that a new version proves only what changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.accounts.roles import require
from controlplane.accounts.services import record
from controlplane.banks.models import AnchorCheck, Bank, BankVersion, Task
from controlplane.cluster.models import Node, NodeState
from controlplane.runs.models import Run
from runner.contract.anchors import (
    ANCHOR_AGENTS,
    AnchorAgent,
    AnchorResult,
    AnchorState,
    AnchorSummary,
    is_floor_wrong,
    problems,
    score_problems,
    summarise,
)
from runner.contract.evaluation_config import ANCHORS, KIND
from runner.contract.repair import BLOCKED
from runner.contract.states import RunState

REPAIR = "harbor"
UNDER_WAY = (RunState.QUEUED, RunState.ACTIVE)
MAX_REASON = 400


# ---------------------------------------------------------------- reading
def countable(version: BankVersion) -> QuerySet[Task]:
    """The tasks that the gate is about: neither blocked by a finding nor quarantined."""
    return Task.objects.filter(version=version, quarantined_at=None).exclude(split=BLOCKED)


def newest_checks(version: BankVersion) -> dict[tuple[str, str], AnchorCheck]:
    """The newest check of each (task key, agent), found by the task's files within the bank."""
    keys = dict(Task.objects.filter(version=version).annotate(digest=KT("payload__task_digest")).values_list("key", "digest"))
    found = (
        AnchorCheck.objects.filter(task__version__bank=version.bank_id, task_digest__in=set(keys.values()))
        .order_by("task_digest", "agent", "-id")
        .distinct("task_digest", "agent")
    )
    by_digest = {(check.task_digest, check.agent): check for check in found}
    pairs = ((key, digest, agent) for key, digest in keys.items() for agent in ANCHOR_AGENTS)
    return {(key, agent): by_digest[digest, agent] for key, digest, agent in pairs if (digest, agent) in by_digest}


def summary(version: BankVersion, checks: dict[tuple[str, str], AnchorCheck] | None = None) -> AnchorSummary:
    """The state of a version's anchors, with what is missing and what is broken."""
    checks = newest_checks(version) if checks is None else checks
    results = {pair: check.problems for pair, check in checks.items()}
    return summarise(countable(version).values_list("key", flat=True), results, is_proving(version))


def proofs(version: BankVersion) -> QuerySet[Run]:
    """The runs that proved the version's anchors, or tried to, newest first."""
    return Run.objects.filter(bank_version=version, kind=KIND, method=ANCHORS).order_by("-created_at")


def is_proving(version: BankVersion) -> bool:
    """Whether anchors run over the version now. A run that ended, however it ended, proves nothing any more."""
    return version.proving_since is not None and proofs(version).filter(state__in=UNDER_WAY).exists()


@dataclass(frozen=True)
class AnchorRow:
    """One task on the anchors' page. `oracle` and `nop` are the newest checks, None where there is none (W11)."""

    task: Task
    oracle: AnchorCheck | None
    nop: AnchorCheck | None

    @property
    def checks(self) -> list[AnchorCheck]:
        return [check for check in (self.oracle, self.nop) if check]

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(problem for check in self.checks for problem in check.problems))

    @property
    def newest(self) -> AnchorCheck | None:
        return max(self.checks, key=lambda check: check.at, default=None)

    @property
    def floor(self) -> float | None:
        """What the bank says that the unrepaired code scores; None where it says nothing."""
        return expected_floor(self.task)

    @property
    def straw(self) -> float | None:
        """What the unrepaired code scored in the verifier's image, as a verifier reported it last; None before one did."""
        newest = max((check for check in self.checks if check.floor is not None), key=lambda check: check.at, default=None)
        return newest and newest.floor

    @property
    def proven(self) -> list[tuple[str, bool, float | None]]:
        """(name, whether there is a result, its score) of straw, nop and oracle."""
        named = [("nop", self.nop), ("oracle", self.oracle)]
        return [("straw", self.straw is not None, self.straw), *((name, check is not None, check and check.score) for name, check in named)]

    @property
    def wrong(self) -> set[str]:
        """Which of oracle, nop and straw breaks the gate."""
        found = {check.agent for check in self.checks if score_problems(check.agent, check)}
        return found | ({"straw"} if is_floor_wrong(self.straw, self.floor) else set())

    @property
    def is_weakly_isolated(self) -> bool:
        return any(check.backend == "process" for check in self.checks)


def rows(version: BankVersion, checks: dict[tuple[str, str], AnchorCheck] | None = None) -> list[AnchorRow]:
    """Every task that can run, quarantined ones too; broken ones first, then those without a result, then by key."""
    checks = newest_checks(version) if checks is None else checks
    tasks = Task.objects.filter(version=version).exclude(split=BLOCKED).select_related("quarantined_by").order_by("key")
    found = [AnchorRow(task, *(checks.get((task.key, agent)) for agent in ANCHOR_AGENTS)) for task in tasks]
    return sorted(found, key=lambda row: (not row.problems, bool(row.oracle and row.nop), row.task.key))


def found_here(version: BankVersion, checks: dict[tuple[str, str], AnchorCheck] | None = None) -> list[tuple[str, str, str]]:
    """(task, code, detail) of what no file shows: W11 no anchor result for the task's files, W06 a GPU that no node has."""
    checks = newest_checks(version) if checks is None else checks
    has_gpu = Node.objects.filter(gpus__gt=0).exclude(state=NodeState.GONE).exists()
    found = []
    for key, gpus in countable(version).order_by("key").values_list("key", "payload__gpus"):
        lacking = [agent for agent in ANCHOR_AGENTS if (key, agent) not in checks]
        found += [(key, "W11", f"no result of {' and '.join(lacking)}")] if lacking else []
        found += [(key, "W06", f"needs {gpus}")] if gpus and not has_gpu else []
    return found


def quarantined_keys(version: BankVersion) -> list[str]:
    """Tasks that no run may draw for now."""
    return list(Task.objects.filter(version=version).exclude(quarantined_at=None).order_by("key").values_list("key", flat=True))


# ---------------------------------------------------------------- writing
def finish_proving(version: BankVersion) -> AnchorSummary:
    """The anchors have run: from now on the results alone decide."""
    BankVersion.objects.filter(pk=version.pk).update(proving_since=None)
    version.proving_since = None
    return summary(version)


def record_anchor(version: BankVersion, key: str, agent: AnchorAgent, result: AnchorResult, user: User | None = None) -> AnchorCheck:
    """Keep what an anchor agent earned on a task, with the gate's verdict. Raises ValidationError naming the field."""
    if agent not in ANCHOR_AGENTS:
        raise ValidationError({"agent": f"{agent!r} is no anchor agent; oracle and nop are"})
    task = Task.objects.filter(version=version, key=key).first()
    if task is None:
        raise ValidationError({"task": f"{version} has no task {key[:200]!r}"})
    digest = task.payload.get("task_digest", "")
    if result.task_digest and result.task_digest != digest:
        raise ValidationError(
            {"task_digest": f"E13: {key} was run from {result.task_digest[:12]}, the version has {digest[:12]}; import again"}
        )
    expected = expected_floor(task)
    measured = result.model_dump(exclude={"task_digest"})
    return AnchorCheck.objects.create(
        task=task,
        task_digest=digest,
        agent=agent,
        expected_floor=expected,
        problems=problems(agent, result, expected),
        recorded_by=user,
        **measured,
    )


@dataclass(frozen=True)
class TaskResult:
    """One result as it is reported: whose, on which task."""

    task: str
    agent: AnchorAgent
    result: AnchorResult


def read_result(document: dict) -> TaskResult:
    """A reported result {task, agent, …the fields of AnchorResult}. Raises pydantic's ValidationError."""
    rest = {name: value for name, value in document.items() if name not in ("task", "agent")}
    return TaskResult(str(document.get("task", "")), str(document.get("agent", "")), AnchorResult.model_validate(rest))


@transaction.atomic
def record_anchors(version: BankVersion, results: Sequence[TaskResult], user: User | None = None) -> None:
    """Keep several results, all or none. Raises ValidationError."""
    require_repair(version)
    for item in results:
        record_anchor(version, item.task, item.agent, item.result, user)


def expected_floor(task: Task) -> float | None:
    """What the verifier must report: the container's floor where it was measured, else the native one."""
    container, native = task.payload.get("floor_container"), task.payload.get("floor_native")
    return native if container is None else container


def quarantine(user: User, version: BankVersion, key: str, reason: str) -> Task:
    """Take a task out of training, evaluation and the gate until it is released. Raises ValidationError, PermissionDenied."""
    require(user, version.bank.team, "bank.quarantine")
    reason = reason.strip()
    if not reason or len(reason) > MAX_REASON:
        raise ValidationError({"reason": f"say why, in at most {MAX_REASON} characters"})
    return _mark(user, version, key, "bank.quarantine", quarantined_at=timezone.now(), quarantined_by=user, quarantine_reason=reason)


def release(user: User, version: BankVersion, key: str) -> Task:
    """Let a quarantined task be drawn again. Raises ValidationError, PermissionDenied."""
    require(user, version.bank.team, "bank.quarantine")
    return _mark(user, version, key, "bank.release", quarantined_at=None, quarantined_by=None, quarantine_reason="")


@transaction.atomic
def _mark(user: User, version: BankVersion, key: str, verb: str, **changes) -> Task:
    task = Task.objects.select_for_update().filter(version=version, key=key).first()
    if task is None:
        raise ValidationError({"task": f"{version} has no task {key[:200]!r}"})
    for name, value in changes.items():
        setattr(task, name, value)
    task.save(update_fields=list(changes))
    record(user, verb, version, {"task": key, "reason": changes["quarantine_reason"]})
    return task


def require_repair(version: BankVersion) -> None:
    """Raises ValidationError for a bank whose answers need no container."""
    if version.bank.environment != REPAIR:
        raise ValidationError({"version": f"{version} holds {version.bank.environment} tasks, which have no anchors"})


def gate(bank: Bank, version: BankVersion) -> str | None:
    """Why a model may not be trained or evaluated on this version without a stated reason; None when it may."""
    if bank.environment != REPAIR:
        return None
    found = summary(version)
    return None if found.state == AnchorState.PROVEN else f"{version} is {found.state}: {found.sentence}"
