"""From an evaluation's document to a run that may be queued: parse, check, pin, queue. It is a run like any other from there on."""

from dataclasses import dataclass, field

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.accounts.roles import require
from controlplane.accounts.services import record
from controlplane.banks import anchors, warming
from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster.allocator import alone
from controlplane.cluster.models import Node, NodeState
from controlplane.cluster.selectors import why_impossible
from controlplane.runs import preflight, preflight_harbor
from controlplane.runs.changes import move_run
from controlplane.runs.models import Run
from controlplane.runs.recipes import recipe_of_bytes
from controlplane.runs.services import nudge, project_for
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.evaluation_config import ANCHORS, KIND, REGRADE, SERVED, WARMING, EvaluationConfig, parse_evaluation
from runner.contract.evaluation_results import select
from runner.contract.parse import FieldError, InvalidDocument
from runner.contract.states import RunState
from runner.contract.warming import CONCURRENCY


@dataclass
class Checked:
    """A document after every instant check. `config` is pinned, and present exactly when there are no errors."""

    document: dict
    config: EvaluationConfig | None = None
    version: BankVersion | None = None
    tasks: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)
    warnings: list[FieldError] = field(default_factory=list)

    @property
    def trials(self) -> int:
        if self.config and self.config.saved:
            return len(self.config.saved)
        return len(self.tasks) * self.config.selection.samples * len(self.config.agents) if self.config else 0


def check(user, team, document: dict) -> Checked:
    """Collects every error instead of stopping at the first. Raises PermissionDenied for outsiders."""
    require(user, team, "run.read")
    try:
        config = parse_evaluation(document)
    except InvalidDocument as invalid:
        return Checked(document, errors=invalid.errors)
    found, tasks = preflight.Findings(), []
    version = _version(config, team, found)
    if version:
        tasks = _tasks(config, version, found)
    if config.model:
        _check_model(config, team, found)
    _check_place(config, team, found)
    pinned = None if found.errors else _pinned(config, version, found)
    return Checked(document, pinned, version, tasks, found.errors, found.warnings)


def _check_place(config: EvaluationConfig, team, found: preflight.Findings) -> None:
    asked = config.resources
    if why := why_impossible(alone(asked.cpus, asked.node or "")):
        at = "/resources/node" if asked.node else "/resources/cpus"
        found.refuse(at, f"{why}; ask for less, or add a node", asked.node or asked.cpus)
    if config.agent == WARMING and (why := warming.why_not_now([asked.node], team)):
        found.refuse("/resources/node", why, asked.node)


def _version(config: EvaluationConfig, team, found: preflight.Findings) -> BankVersion | None:
    wanted = config.environment
    bank = Bank.objects.filter(team=team, slug=wanted.bank, environment=anchors.REPAIR, archived_at=None).first()
    if bank is None:
        known = ", ".join(Bank.objects.filter(team=team, environment=anchors.REPAIR, archived_at=None).values_list("slug", flat=True))
        return found.refuse("/environment/bank", f"no such bank of repair tasks (there are: {known or 'none yet'})", wanted.bank)
    version = bank.versions.filter(**({"digest": wanted.version} if wanted.version else {})).select_related("bank__team").first()
    if version is None:
        found.refuse("/environment/version", f"bank {bank.slug} has no version of that digest", wanted.version)
    return version


def _tasks(config: EvaluationConfig, version: BankVersion, found: preflight.Findings) -> list[str]:
    """Keys of the selected tasks, and what speaks against running them."""
    rows = Task.objects.filter(version=version, quarantined_at=None)
    try:
        keys = [task.key for task in select(list(rows), config)]
    except ValueError as error:
        found.refuse("/selection", f"{version}: {error}")
        return []
    chosen = rows.filter(key__in=keys)
    preflight_harbor.check_files(version, chosen, found)
    if config.agent not in (ANCHORS, WARMING):
        preflight_harbor.check_verifiers(config.environment, chosen, found)
    if config.agent not in (ANCHORS, WARMING, REGRADE):
        preflight_harbor.check_warmth(config.environment, version, found, config.resources.node)
    if config.agent == "model":
        preflight_harbor.check_anchors(config.environment, version, found)
        preflight_harbor.check_agent(config, chosen, found)
    return keys


def _check_model(config: EvaluationConfig, team, found: preflight.Findings) -> None:
    source = config.model.source
    if source.type in SERVED:
        return
    preflight.check_model(config, team, found)
    if source.type != "checkpoint":
        return found.warn("/model/source", "this is a base model, not a checkpoint of a run; the result says so", source.type)
    if found.facts and not _is_whole(manifest := Checkpoint.objects.get(pk=source.checkpoint).manifest):
        writers = manifest["topology"]["learners"]
        told = f"was written by {writers} learners and holds no whole weights in model/ or adapter/; export it whole"
        found.refuse("/model/source/checkpoint", told, source.checkpoint)


def _is_whole(manifest: dict) -> bool:
    """Whether the weights lie in files that one process reads: learner processes beyond the first add to trainer/ only."""
    several = (manifest.get("topology") or {}).get("learners", 1) != 1
    return not several or any(entry["path"].startswith(("model/", "adapter/")) for entry in manifest["files"])


def _pinned(config: EvaluationConfig, version: BankVersion, found: preflight.Findings) -> EvaluationConfig:
    document = config.model_dump(mode="json")
    document["environment"]["version"] = version.digest
    if found.facts:
        document["model"]["source"]["revision"] = found.facts.revision
    return parse_evaluation(document)


def launch(user, team, document: dict) -> Run:
    """Queue the evaluation that `document` describes. Raises InvalidDocument naming each field, PermissionDenied for viewers."""
    require(user, team, "run.launch")
    with transaction.atomic():
        if document.get("agent") == WARMING:
            _lock_nodes()
        checked = check(user, team, document)
        if checked.errors:
            raise InvalidDocument(checked.errors)
        return _queue(user, team, checked)


def _lock_nodes() -> list[Node]:
    """The ready nodes, held until the transaction ends: of two who want to warm one at once, the second sees the first's run."""
    return list(Node.objects.select_for_update(no_key=True).filter(state=NodeState.READY).order_by("name"))


def _queue(user, team, checked: Checked) -> Run:
    config, content = checked.config, canonical_bytes(checked.config)
    now = timezone.now()
    run = Run.objects.create(
        kind=KIND,
        project=project_for(user, team, config.project),
        owner=user,
        document=checked.document,
        config=content,
        config_hash=digest(content),
        bank_version=checked.version,
        name=config.name,
        experiment=config.experiment or "",
        tags=config.tags,
        method=config.agent if config.agent in (ANCHORS, REGRADE, WARMING) else f"evaluate {config.agent_name}",
        model=_model_name(config)[:200],
        environment=config.environment.type,
        seed=config.seed,
        recipe=recipe_of_bytes(content),
        priority=config.priority,
        total_steps=checked.trials,
    )
    move_run(run, RunState.QUEUED, actor=user, queued_at=now, next_check_at=now)
    record(user, "run.launch", run, {"config_hash": run.config_hash, "parent": None})
    nudge()
    return run


def _model_name(config: EvaluationConfig) -> str:
    if config.model is None:
        return "none"
    source = config.model.source
    names = {"builtin": "name", "path": "path", "hub": "repo_id", "checkpoint": "checkpoint", "served": "name", "endpoint": "name"}
    return getattr(source, names[source.type])


def start_proving(user, version: BankVersion, backend: str = "docker", concurrency: int = 4) -> BankVersion:
    """Queue a run of oracle and nop over every task of the version. Raises PermissionDenied, ValidationError."""
    require(user, version.bank.team, "bank.prove")
    anchors.require_repair(version)
    if not anchors.countable(version).exists():
        raise ValidationError({"version": f"{version}: no task can run; mend the findings and import again"})
    document = {
        "kind": KIND,
        "name": f"Anchors of {version}",
        "agent": ANCHORS,
        "environment": {"type": "harbor", "bank": version.bank.slug, "version": version.digest}
        | {"backend": backend, "max_concurrent_episodes": concurrency, "task_timeout_sec": None},
        "selection": {"gpu_tasks": True},
    }
    checked = check(user, version.bank.team, document)
    if checked.errors:
        raise ValidationError({"version": "; ".join(map(str, checked.errors))})
    with transaction.atomic():
        version = BankVersion.objects.select_for_update(of=("self",)).select_related("bank__team").get(pk=version.pk)
        if anchors.is_proving(version):
            raise ValidationError(
                {"version": f"{version}: its anchors run since {version.proving_since:%H:%M}; wait for them or stop them first"}
            )
        version.proving_since = timezone.now()
        version.save(update_fields=["proving_since"])
        run = _queue(user, version.bank.team, checked)
        record(user, "bank.prove", version, {"bank": version.bank.slug, "number": version.number, "run": str(run.pk)})
    return version


@transaction.atomic
def start_warming(user, version: BankVersion, backend: str = "docker") -> list[Run]:
    """Queue nop over the version's tasks on every ready node, a run a node. Raises PermissionDenied, ValidationError."""
    require(user, version.bank.team, "bank.warm")
    anchors.require_repair(version)
    if not anchors.countable(version).exists():
        raise ValidationError({"version": f"{version}: no task can run; mend the findings and import again"})
    nodes = _lock_nodes()
    if not nodes:
        raise ValidationError({"nodes": "no node is ready; start one, or take it back into service on the cluster page"})
    if why := warming.why_not_now([node.name for node in nodes], version.bank.team):
        raise ValidationError({"nodes": why})
    runs = [_warm_one(user, version, node, backend) for node in nodes]
    told = {"bank": version.bank.slug, "number": version.number, "nodes": [node.name for node in nodes]}
    record(user, "bank.warm", version, told)
    return runs


def _warm_one(user, version: BankVersion, node: Node, backend: str) -> Run:
    document = {
        "kind": KIND,
        "name": f"Warming of {node.name} for {version}"[:120],
        "agent": WARMING,
        "environment": {"type": "harbor", "bank": version.bank.slug, "version": version.digest}
        | {"backend": backend, "max_concurrent_episodes": CONCURRENCY, "task_timeout_sec": None},
        "selection": {"gpu_tasks": node.gpus > 0},
        "resources": {"node": node.name},
    }
    checked = check(user, version.bank.team, document)
    if checked.errors:
        raise ValidationError({"nodes": f"node {node.name}: " + "; ".join(map(str, checked.errors))})
    return _queue(user, version.bank.team, checked)
