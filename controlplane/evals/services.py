"""Recording evaluations as their runs report them."""

from uuid import UUID

from controlplane.checkpoints.models import Checkpoint
from controlplane.evals.models import Evaluation, Protocol, Result
from controlplane.telemetry.reading import Reader
from controlplane.telemetry.text import clean_json
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.events import InvalidBatch


def record_evaluation(attempt, data: dict) -> Evaluation:
    """Store an `evaluation` event (its data) once, inside the caller's transaction. Raises InvalidBatch, naming the field."""
    read = Reader("events.evaluation", data)
    id, step = read.uuid("evaluation"), read.whole("step", 53)
    if id is None or step is None:
        raise InvalidBatch("events.evaluation: evaluation (UUID) and step are needed")
    known = Evaluation.objects.filter(pk=id).first()
    if known and known.run_id != attempt.run_id:
        raise InvalidBatch(f"events.evaluation.evaluation: {id} belongs to another run")
    if known:
        return known
    evaluation = Evaluation.objects.create(
        id=id,
        run_id=attempt.run_id,
        attempt=attempt.number,
        protocol=record_protocol(read.document("protocol")),
        checkpoint=_checkpoint(attempt, read.uuid("checkpoint")),
        bank_version_id=attempt.run.bank_version_id,
        label=read.text("label", 60),
        stage=read.whole("stage") or 0,
        step=step,
        policy_version=read.whole("policy_version", 63),
        summary=read.document("summary"),
        baselines=read.document("baselines"),
    )
    Result.objects.bulk_create(_results(evaluation, read.maps("results")))
    return evaluation


def record_protocol(document: dict) -> Protocol:
    """The protocol of `document`, named by the hash of its canonical bytes."""
    document = clean_json(document)
    return Protocol.objects.get_or_create(hash=digest(canonical_bytes(document)), defaults={"document": document})[0]


def _checkpoint(attempt, id: UUID | None) -> Checkpoint | None:
    return Checkpoint.objects.filter(pk=id, run_id=attempt.run_id).first() if id else None


def _results(evaluation: Evaluation, rows: list[dict]) -> list[Result]:
    results = {}
    for row in rows:
        read = Reader("events.evaluation.results", row)
        task = read.text("task", 200)
        if not task or task in results:
            raise InvalidBatch(f"events.evaluation.results.task: {task!r:.80} is blank or there twice")
        results[task] = Result(
            evaluation=evaluation,
            task=task,
            domain=read.text("domain", 80),
            level=read.text("level", 40),
            score=read.finite("score"),
            forced=read.finite("forced"),
            parsed=read.flag("parsed"),
            episode=read.uuid("episode"),
            records=clean_json(read.maps("records")),
        )
    return list(results.values())
