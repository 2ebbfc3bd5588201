"""Each page asks the database as often for one row of everything as for a hundred, and no more often than its budget.

Every route of the URL configuration that shows a page stands in PAGES, or in NO_PAGES when it only acts or answers without rows; a new one
that stands in neither fails here.
"""

import uuid
from types import SimpleNamespace

import pytest
from django.urls import URLPattern, get_resolver
from django.utils import timezone

from controlplane.accounts.models import AuditEntry
from controlplane.accounts.services import create_token
from controlplane.alerts.models import Incident
from controlplane.banks.models import AnchorCheck, Bank, BankImport, BankVersion, Task, WarmedTask
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster.models import Grant, Node, Share
from controlplane.episodes.models import Episode, Label, Turn
from controlplane.evals.models import Evaluation, Protocol, Result
from controlplane.runs.models import RunEvent
from controlplane.telemetry.models import LogLine
from controlplane.telemetry.points import write_points
from runner.contract import presets
from runner.contract.canonical import canonical_bytes
from runner.contract.repair import RepairPayload
from runner.contract.states import CheckpointState, EpisodeState, RunState
from tests.controlplane.factories import make_attempt, make_points, make_run
from tests.controlplane.pages import queries_of

LIST, RUN, OTHER = 12, 20, 20
CONFIG = canonical_bytes(presets.as_config(presets.find("sample")).model_dump(mode="json"))

# Route name: (its budget, its path in a world).
PAGES = {
    "runs": (LIST, lambda w: "/runs"),
    "run-rows": (LIST, lambda w: f"/runs/rows?ids={','.join(str(run.pk) for run in w.runs[:50])}"),
    "run": (RUN, lambda w: f"/runs/{w.run.pk}"),
    "run-header": (RUN, lambda w: f"/runs/{w.run.pk}/header"),
    "run-metrics": (RUN, lambda w: f"/runs/{w.run.pk}/metrics?q=metric"),
    "run-logs": (RUN, lambda w: f"/runs/{w.run.pk}/logs"),
    "run-config": (RUN, lambda w: f"/runs/{w.run.pk}/config"),
    "run-checkpoints": (RUN, lambda w: f"/runs/{w.run.pk}/checkpoints"),
    "run-evaluation": (RUN, lambda w: f"/runs/{w.run.pk}/evaluation"),
    "run-audit": (RUN, lambda w: f"/runs/{w.run.pk}/audit"),
    "episodes": (RUN, lambda w: f"/runs/{w.run.pk}/episodes"),
    "episode": (RUN, lambda w: f"/episodes/{w.episode.pk}"),
    "episode-turns": (RUN, lambda w: f"/episodes/{w.episode.pk}/turns?after=0"),
    "episode-compare": (RUN, lambda w: f"/episodes/{w.episode.pk}/compare/{w.other.pk}"),
    "evaluate": (LIST, lambda w: "/evaluate"),
    "compare": (RUN, lambda w: f"/compare?runs={','.join(str(run.pk) for run in w.runs[:10])}"),
    "launch": (OTHER, lambda w: "/launch"),
    "banks": (LIST, lambda w: "/banks"),
    "bank": (LIST, lambda w: f"/banks/{w.bank.slug}"),
    "bank-version": (OTHER, lambda w: f"/banks/{w.repair.bank.slug}/1"),
    "bank-anchors": (LIST, lambda w: f"/banks/{w.repair.bank.slug}/1/anchors"),
    "bank-warmth": (LIST, lambda w: f"/banks/{w.repair.bank.slug}/1/warmth"),
    "bank-import": (LIST, lambda w: f"/banks/imports/{w.bank_import.pk}"),
    "cluster": (LIST, lambda w: "/cluster"),
    "settings": (LIST, lambda w: "/settings"),
    "house-status": (LIST, lambda w: "/house"),
}
NO_PAGES = set(
    """
    home health login login-link logout theme token-create token-revoke member-invite member-role member-remove
    runs-bulk view-save view-delete launch-check launch-fields launch-union launch-stages launch-text
    run-stop run-resume run-retry run-archive checkpoint-pin node-cordon episode-label bank-quarantine bank-prove bank-stop-proving
    bank-warm bank-stop-warming episode-regrade episode-again evaluate-check
    """.split()
)


@pytest.fixture
def world(team, owner):
    """A run with an attempt, a bank, an episode and its sibling, and one row of everything else."""
    made = SimpleNamespace(team=team, owner=owner, size=0, runs=[])
    made.bank = Bank.objects.create(team=team, slug="quiz", name="Quiz", environment="quiz")
    made.version = BankVersion.objects.create(bank=made.bank, number=1, digest="d", blob="b", size=1)
    repair = Bank.objects.create(team=team, slug="repair", name="Repair", environment="harbor")
    counts = {"repair": {"bytes": 0, "counts": dict.fromkeys(("env", "category", "family", "tier", "tree"), {})}}
    made.repair = BankVersion.objects.create(bank=repair, number=1, digest="d", blob="b", size=1, counts=counts)
    made.bank_import = BankImport.objects.create(team=team, bank="quiz", environment="quiz", source="bundled")
    made.protocol = Protocol.objects.create(hash="a" * 64, document={"split": "eval"})
    made.run = make_run(team, config=CONFIG, owner=owner, step=3, bank_version=made.version, name="main")
    made.attempt = make_attempt(made.run, first_step=0, last_heartbeat_at=timezone.now())
    made.runs.append(made.run)
    made.episode, made.other = (_episode(made, 0, sample) for sample in (0, 1))
    grow(made, 2)
    return made


def grow(world, size: int) -> None:
    """As many rows of each kind as `size`."""
    for index in range(world.size, size):
        _grow_run(world, index)
        _grow_house(world, index)
    names = {f"group{index}/metric_{index}": [(0, 1.0), (1, 2.0)] for index in range(world.size, size)}
    write_points(world.run.pk, 1, make_points(names))
    world.size = size


def _grow_run(world, index: int) -> None:
    run, now = world.run, timezone.now()
    LogLine.objects.create(run=run, attempt=1, t=1000.0 + index, component=f"worker-{index % 3}", level="info", message="line")
    Checkpoint.objects.create(run=run, attempt=1, step=index, path="/x", state=CheckpointState.COMPLETE, size=1, pinned_by=world.owner)
    RunEvent.objects.create(
        run=run, attempt=1, kind="stage_started", step=index, actor=world.owner, at=now, data={"stage": 0, "type": "grpo"}
    )
    AuditEntry.objects.create(team=world.team, actor=world.owner, verb="run.stop", kind="run", object_id=str(run.pk))
    Incident.objects.create(run=run, rule=f"rule {index}", metric="actor/entropy", severity="warning", message="m", opened_step=index)
    _evaluate(world, run, index)
    episode = _episode(world, 0, index + 2)
    Label.objects.create(episode=world.episode, user=world.owner, name=f"label {index}")
    for target in (world.episode, world.other, episode):
        Turn.objects.create(episode=target, index=index, role="assistant", author="student", text=f"turn {index}")


def _grow_house(world, index: int) -> None:
    team = world.team
    run = make_run(team, config=CONFIG, name=f"run {index}", owner=world.owner, latest={"reward": {"value": 0.5, "step": 1, "attempt": 1}})
    write_points(run.pk, 1, make_points({"critic/score/mean": [(0, 0.1), (1, 0.5)]}))
    _evaluate(world, run, index)
    _evaluate(world, make_run(team, kind="evaluation", config=CONFIG, method="evaluate oracle", bank_version=world.repair), index)
    world.runs.append(run)
    node = Node.objects.create(name=f"node-{index}", address="10.0.0.1", cpus=8, gpus=2, last_seen_at=timezone.now())
    Share.objects.create(grant=Grant.objects.create(attempt=make_attempt(run)), node=node, bundle="learner", cpus=1, gpus=1)
    make_run(team, name=f"waiting {index}", state=RunState.QUEUED, queued_at=timezone.now(), waiting="needs 8 GPUs", config=CONFIG)
    bank = Bank.objects.create(team=team, slug=f"bank-{index}", name="Bank", environment="quiz")
    BankVersion.objects.create(bank=bank, number=1, digest=f"{index}", blob="b", size=1)
    BankVersion.objects.create(bank=world.bank, number=index + 2, digest=f"own {index}", blob="b", size=1)
    BankImport.objects.create(team=team, bank="quiz", environment="quiz", source="bundled", created_by=world.owner)
    Task.objects.create(version=world.version, key=f"task-{index}", split="train", domain=f"domain {index % 4}", payload={"question": "?"})
    payload = RepairPayload(task_digest=f"{index:064x}", name=f"demo/task-{index}", floor_native=0.3)
    mended = Task.objects.create(version=world.repair, key=payload.name, split="train", payload=payload.model_dump(mode="json"))
    for agent in ("oracle", "nop"):
        AnchorCheck.objects.create(task=mended, task_digest=payload.task_digest, agent=agent, score=0.5, floor=0.4, problems=["wrong"])
    about = {"document": {"resources": {"node": node.name}}, "kind": "evaluation", "method": "warming", "config": CONFIG}
    warming = make_run(team, bank_version=world.repair, **about)
    WarmedTask.objects.create(run=warming, task=mended, env_setup_seconds=50, verifier_seconds=1, termination="finished", score=0, passes=2)
    create_token(world.owner, team, f"token {index}", ["read"])


def _evaluate(world, run, index: int) -> None:
    one = Evaluation.objects.create(
        run=run, attempt=1, protocol=world.protocol, label=f"step {index}", step=index, baselines={"chance": 0.25}
    )
    Result.objects.bulk_create(
        Result(evaluation=one, task=f"t{n}", domain=f"d{n % 2}", score=n % 2, forced=1.0, parsed=True) for n in range(3)
    )


def _episode(world, group: int, sample: int) -> Episode:
    described = {"task": f"task-{sample}", "domain": f"d{sample % 3}", "termination": "finished", "score": 1.0, "state": EpisodeState.DONE}
    return Episode.objects.create(id=uuid.uuid4(), run=world.run, attempt=1, step=1, group=group, sample=sample, **described)


def test_a_hundred_rows_take_as_many_queries_as_one(world):
    few = {name: queries_of(world.owner, path(world)) for name, (_, path) in PAGES.items()}
    grow(world, 100)
    many = {name: queries_of(world.owner, path(world)) for name, (_, path) in PAGES.items()}
    assert many == few
    assert {name: many[name] for name, (most, _) in PAGES.items() if many[name] > most} == {}


def test_every_page_is_counted():
    assert page_routes() - NO_PAGES == set(PAGES)


def page_routes() -> set[str]:
    """Names of every route outside of the REST interface and the runner's."""
    return {pattern.name for pattern in _patterns(get_resolver().url_patterns)}


def _patterns(patterns, prefix: str = ""):
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if route.startswith("api/"):
            continue
        if isinstance(pattern, URLPattern):
            yield pattern
        else:
            yield from _patterns(pattern.url_patterns, route)
