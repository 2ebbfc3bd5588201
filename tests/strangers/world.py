"""One object of each kind in team `physics`, for whoever tries every address of the house."""

from pathlib import Path

from controlplane import storage
from controlplane.accounts.models import ApiToken, Membership
from controlplane.alerts.models import Incident
from controlplane.banks.models import BankImport
from controlplane.banks.services import import_version
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster.models import Node
from controlplane.episodes.models import Episode, Turn
from controlplane.evals.models import Evaluation, Protocol
from runner.contract.episode import write_trace
from tests.controlplane.banks.conftest import bank_file
from tests.controlplane.banks.repair import repair_version
from tests.controlplane.factories import make_attempt, make_run

DOCUMENT = {"name": "first", "stages": [{"type": "sft", "steps": 1}]}


def make_world(team, owner, viewer, folder: Path) -> dict:
    """Values of the parameters in the addresses; `x/name` is the value of `name` below /x. Blobs go where ASSAY_STORAGE says."""
    version = import_version(team, "elements", bank_file(), {}, owner, "quiz")
    repair = repair_version(team, owner)
    run, second = (make_run(team, document=DOCUMENT, owner=owner, bank_version=version) for _ in range(2))
    attempt = make_attempt(run)
    digest = repair.tasks.get(key="demo/a").payload["task_digest"]
    protocol = Protocol.objects.create(hash="a" * 64, document={"split": "eval"})
    evaluations = [Evaluation.objects.create(run=run, attempt=1, protocol=protocol, label=f"step {step}", step=step) for step in (1, 2)]
    trace = storage.put(write_trace({"token_id": [1, 2], "logprob": [-0.5, -1.0], "author": [0, 2], "mask": [0, 1]}))
    episodes = [Episode.objects.create(run=run, attempt=1, task="t1", step=1, sample=sample, sampled=trace) for sample in (0, 1)]
    Turn.objects.bulk_create(Turn(episode=episode, index=0, role="user", author="environment", text="What?") for episode in episodes)
    checkpoint = Checkpoint.objects.create(run=run, attempt=1, step=1, path=str(folder / "c"), state="complete")
    Incident.objects.create(run=run, rule="r", metric="m", severity="warning", message="x")
    return {
        "team": team.slug,
        "teams/team": team.pk,
        "token_id": ApiToken.objects.create(team=team, user=owner, name="victim", prefix="assay_", hash="f" * 64, scopes=["read"]).pk,
        "member_id": Membership.objects.get(user=viewer).pk,
        "import_id": BankImport.objects.create(team=team, bank="b", environment="quiz", source="bundled").pk,
        "node_id": Node.objects.create(name="node-1", address="127.0.0.1", cpus=2).pk,
        "slug": "elements",
        "bank": repair.bank.slug,
        "digest": digest,
        "number": 1,
        "run_id": run.pk,
        "project_id": run.project_id,
        "second_run": second.pk,
        "attempt_id": attempt.pk,
        "attempt_token": attempt.token,
        "episode_id": episodes[0].pk,
        "episodes/other_id": episodes[1].pk,
        "evaluation_id": evaluations[0].pk,
        "evaluations/other_id": evaluations[1].pk,
        "protocol": protocol.hash,
        "checkpoint_id": checkpoint.pk,
    }
