"""How warm the nodes are for a repair bank: what the runs that warm them report, and the sentence that refuses a second one.

What makes a node warm is in runner.contract.warming; starting a warming is launching a run, and lives in controlplane.evals.launching.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.fields.json import KT

from controlplane.banks.anchors import UNDER_WAY
from controlplane.banks.models import BankVersion, Task
from controlplane.banks.models import WarmedTask as Row
from controlplane.cluster.models import Node, NodeState
from controlplane.runs.models import Run
from runner.contract.evaluation_config import KIND, WARMING
from runner.contract.states import RunState
from runner.contract.warming import WarmedTask


@dataclass(frozen=True)
class NodeWarmth:
    """A node and the newest run that warmed it for the version, None when none did. `rows` are that run's tasks, cold ones first."""

    node: str
    is_ready: bool
    run: Run | None = None
    rows: list[Row] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`warming` while it runs; then `warm`, `cold`, or what became of a run that did not come to its end."""
        if self.run is None:
            return "unknown"
        if self.run.state in UNDER_WAY:
            return "warming"
        if self.run.state != RunState.SUCCEEDED:
            return self.run.state
        return "cold" if self.cold or not self.rows else "warm"

    @property
    def cold(self) -> list[Row]:
        return [row for row in self.rows if row.why_cold]

    @property
    def sentence(self) -> str:
        """How the node stands, with the value; what cold tasks came to is said of the first."""
        if self.run is None:
            return f"node {self.node} was never warmed"
        if self.run.state in (*UNDER_WAY, RunState.SUCCEEDED):
            first = f" ({self.cold[0].task.key}: {self.cold[0].why_cold})" if self.cold else ""
            return f"node {self.node} is {self.state}: {self.warm_count} of {self.run.total_steps} tasks are warm{first}"
        why = f": {self.run.reason}" if self.run.reason else ""
        return f"the warming of node {self.node} {'was' if self.state == RunState.STOPPED else 'is'} {self.state}{why}"

    @property
    def warm_count(self) -> int:
        return len(self.rows) - len(self.cold)

    @property
    def repaired(self) -> int:
        """Tasks that the second pass mended."""
        return sum(row.passes > 1 and not row.why_cold for row in self.rows)

    @property
    def slowest(self) -> Row | None:
        return max(self.rows, key=lambda row: row.env_setup_seconds, default=None)


def warmings(version: BankVersion) -> QuerySet[Run]:
    """The runs that warmed a node for the version, or tried to, newest first; each has its `node`."""
    return _warmings().filter(bank_version=version)


def _warmings() -> QuerySet[Run]:
    runs = Run.objects.filter(kind=KIND, method=WARMING).annotate(node=KT("document__resources__node"))
    return runs.order_by("-created_at", "-id")


def nodes(version: BankVersion) -> list[NodeWarmth]:
    """Every ready node, and those gone since that were warmed, by name."""
    newest: dict[str, Run] = {}
    for run in warmings(version).defer("document", "config").order_by("node", "-created_at", "-id").distinct("node"):
        newest[run.node] = run
    rows = defaultdict(list)
    for row in Row.objects.filter(run__in=newest.values()).select_related("task").order_by("task__key"):
        rows[row.run_id].append(row)
    ready = set(Node.objects.filter(state=NodeState.READY).values_list("name", flat=True))
    found = [(name, newest.get(name)) for name in sorted({*ready, *newest})]
    return [NodeWarmth(name, name in ready, run, sorted(rows[run.pk], key=lambda row: not row.why_cold) if run else []) for name, run in found]


def not_warm(version: BankVersion, only: str | None = None) -> list[NodeWarmth]:
    """The ready nodes, or the one that is named, on which the version's episodes would wait or fail. One that is being warmed is none of them."""
    return [found for found in nodes(version) if found.is_ready and only in (None, found.node) and found.state not in ("warm", "warming")]


def why_not_now(names: Sequence[str], team) -> str | None:
    """Why these nodes cannot be warmed now: one of them is. None when they can. Another team's bank is not named."""
    running = _warmings().filter(node__in=names, state__in=UNDER_WAY).select_related("bank_version__bank", "project").first()
    if running is None:
        return None
    mine = running.project.team_id == team.pk
    told = f"for {running.bank_version}" if mine else "for another team"
    remedy = "wait for it or stop it first" if mine else "wait for it"
    return f"node {running.node} is being warmed {told} since {running.created_at:%H:%M}; {remedy}"


@transaction.atomic
def record_warmed(run: Run, results: Iterable[WarmedTask]) -> None:
    """Keep how tasks came through; a later pass replaces an earlier one. All or none. Raises ValidationError."""
    if run.method != WARMING:
        raise ValidationError({"run": f"{run} warms no node"})
    results = list(results)
    tasks = {task.key: task for task in Task.objects.filter(version=run.bank_version, key__in={item.task for item in results})}
    for item in results:
        if (task := tasks.get(item.task)) is None:
            raise ValidationError({"task": f"{run.bank_version} has no task {item.task!r}"})
        if item.task_digest and item.task_digest != task.payload.get("task_digest", ""):
            raise ValidationError({"task_digest": f"E13: {item.task} was run from {item.task_digest[:12]}; import again"})
        told = item.model_dump(mode="json", exclude={"task", "task_digest"})
        Row.objects.update_or_create(run=run, task=task, defaults=told)
