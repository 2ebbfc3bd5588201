"""Grading an episode once more from what it delivered, and running it again: each is a run of its own."""

import json
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import JsonResponse

from controlplane.accounts.roles import require
from controlplane.banks.anchors import REPAIR
from controlplane.episodes.models import Episode
from controlplane.episodes.services import record_events
from controlplane.evals import launching
from controlplane.evals.models import Evaluation, Result
from controlplane.evals.results import summary_of
from controlplane.runs.attempt_auth import Refused, authenticate_attempt, read_json, require_late_data_welcome, runner_endpoint
from controlplane.runs.changes import announce
from controlplane.runs.models import Run
from controlplane.runs.paths import run_folder
from runner.contract.episode import EventKind
from runner.contract.evaluation_config import ANCHORS, KIND, REGRADE, WARMING
from runner.contract.evaluation_results import error_class
from runner.contract.events import InvalidBatch

MAX_RESULTS = 1000


# ---------------------------------------------------------------- asking for it
def why_not_regrade(episode: Episode) -> str | None:
    """Why the episode cannot be graded once more; None when it can."""
    if episode.run.environment != REPAIR or episode.run.bank_version_id is None:
        return "it ran in no container"
    kept = str(episode.evidence.get("artifacts") or "")
    if not kept:
        return "nothing that it delivered was kept; run it again"
    # The path comes from a runner: only what lies in the run's own folder is handed to a verifier.
    if not Path(kept).resolve().is_relative_to(Path(run_folder(episode.run_id)).resolve()):
        return "what it delivered does not lie in its run's folder"
    return None


def regrade(user, episode: Episode) -> Run:
    """Queue a fresh verifier over what the episode delivered. Raises PermissionDenied, ValidationError, InvalidDocument."""
    require(user, episode.run.project.team, "run.launch")
    if why := why_not_regrade(episode):
        raise ValidationError({"episode": f"this episode cannot be graded again: {why}"})
    saved = {"episode": str(episode.pk), "task": episode.task, "artifacts": str(episode.evidence["artifacts"])}
    document = _document(episode, f"Regrade of {episode.task}"[:120], agent=REGRADE, saved=[saved])
    return launching.launch(user, episode.run.project.team, document)


def run_again(user, episode: Episode) -> Run:
    """Queue the episode's task once more, under the evaluation's own config. Raises PermissionDenied, ValidationError, InvalidDocument."""
    require(user, episode.run.project.team, "run.launch")
    if not episode.run.is_evaluation or episode.run.method == REGRADE:
        raise ValidationError(
            {"episode": "only an evaluation's episode is run again; evaluate a checkpoint of the run on its task instead"}
        )
    config = json.loads(bytes(episode.run.config))
    agent = episode.facts.get("agent") if config["agent"] in (ANCHORS, WARMING) else config["agent"]
    more = {"agent": agent, **{name: config[name] for name in ("model", "sampling", "seed", "resources")}}
    return launching.launch(user, episode.run.project.team, _document(episode, f"{episode.task} again"[:120], **more))


def _document(episode: Episode, name: str, **more: Any) -> dict[str, Any]:
    """The episode's task alone, in containers as its run had them."""
    config = json.loads(bytes(episode.run.config))
    pattern = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in episode.task)
    environment = {**config["environment"], "version": episode.run.bank_version.digest, "verifier_fault_rate": 0.0}
    # Filters of a training run must not leave its own task out.
    environment |= {"domains": [], "levels": [], "families": []}
    kept = {"kind": KIND, "name": name, "project": episode.run.project.slug, "environment": environment}
    return {**kept, "selection": {"task_glob": pattern, "gpu_tasks": True}, **more}


# ---------------------------------------------------------------- taking the result
@runner_endpoint("POST")
def regrade_results(request, attempt_id: int):
    """What saved episodes were graded once more: {results: [{episode, score, reason, checks, evidence, grader}]}."""
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    require_late_data_welcome(attempt)
    results = body.get("results", [])
    if not isinstance(results, list) or len(results) > MAX_RESULTS or not all(isinstance(item, dict) for item in results):
        raise Refused(400, "Bad field", f"results: a list of at most {MAX_RESULTS} objects")
    config = json.loads(bytes(attempt.run.config))
    asked = {saved["episode"] for saved in config.get("saved", [])} if attempt.run.method == REGRADE else set()
    if foreign := [item.get("episode") for item in results if item.get("episode") not in asked]:
        raise Refused(400, "Not this attempt's episode", f"{foreign[0]!r:.80} is none of the episodes that this run grades")
    try:
        taken = sum(take(item) for item in results)
    except InvalidBatch as error:
        raise Refused(400, "Bad grade", str(error)) from None
    return JsonResponse({"taken": taken})


@transaction.atomic
def take(told: dict[str, Any]) -> bool:
    """Let a new grade count for its episode, and for the evaluation that the episode belongs to.

    A verifier that failed again says nothing new: the earlier grade stands. False then. Raises InvalidBatch.
    """
    if told.get("score") is None:
        return False
    episode = Episode.objects.select_for_update(of=("self",)).select_related("run__project").get(pk=uuid.UUID(told["episode"]))
    evidence = told.get("evidence") if isinstance(told.get("evidence"), dict) else {}
    # What only the agent's own episode knows stays: its patch, and where its deliveries lie.
    fresh = {name: value for name, value in evidence.items() if name not in ("patch", "artifacts", "delivered")}
    data = {**told, "evidence": {**episode.evidence, **fresh, "regraded": True}}
    ordinal = (episode.grade_ordinal or 0) + 1
    item = {"episode": str(episode.pk), "kind": EventKind.GRADED.value, "ordinal": ordinal, "t": time.time(), "data": data}
    record_events(SimpleNamespace(run_id=episode.run_id, number=episode.attempt), [item])
    _rewrite(episode.pk)
    announce(episode.run)
    return True


def _rewrite(episode_id: uuid.UUID) -> None:
    """The episode's line in the results of its evaluation, and the evaluation's summary."""
    episode = Episode.objects.get(pk=episode_id)
    evaluation = Evaluation.objects.filter(pk=episode.evaluation).first() if episode.evaluation else None
    row = evaluation and Result.objects.select_for_update().filter(evaluation=evaluation, task=episode.task).first()
    if not row or not row.records:
        return
    row.records = [_line(line, episode) if line["episode"] == str(episode.pk) else line for line in row.records]
    scores = [line["score"] for line in row.records if line["score"] is not None]
    row.score = sum(scores) / len(scores) if scores else None
    row.save(update_fields=["records", "score"])
    evaluation.summary = {**evaluation.summary, "overall": summary_of(evaluation)["overall"]}
    evaluation.save(update_fields=["summary"])


def _line(line: dict[str, Any], episode: Episode) -> dict[str, Any]:
    rewards, graded = episode.evidence.get("rewards", {}), episode.score is not None
    passed = int(rewards.get("equivalence_pass") or 0) if graded else None
    more = {"raw_reward": rewards.get("reward"), "equivalence_pass": passed, "success": bool(passed), "rewards": rewards, "regraded": True}
    more |= {"floor_reported": rewards.get("floor"), "termination": episode.termination}
    error = error_class("" if graded else line["exception"] or "", episode.termination, graded)
    return {**line, "score": episode.score, **more, "error_class": error}
