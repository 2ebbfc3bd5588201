"""What a node may ask and say about repair tasks: a task's files by digest, and what they came to there. The attempt's token opens every door."""

from django.core.exceptions import ValidationError
from django.http import FileResponse, JsonResponse
from pydantic import ValidationError as InvalidModel

from controlplane import storage
from controlplane.banks import anchors, files, warming
from controlplane.banks.models import Task
from controlplane.runs.attempt_auth import Refused, authenticate_attempt, read_json, require_late_data_welcome, runner_endpoint
from runner.contract.warming import WarmedTask

MAX_RESULTS = 1000


@runner_endpoint("GET")
def task_files(request, attempt_id: int, digest: str):
    """A task's folder as a tar, named by the task's digest."""
    version = authenticate_attempt(request, attempt_id).run.bank_version
    if not Task.objects.filter(version=version, payload__task_digest=digest).exists():
        raise Refused(404, "No such task", f"{version} has no task of digest {digest[:64]}")
    try:
        packed = files.task_tar(digest)
    except storage.BlobMissing as error:
        raise Refused(410, "Task files missing", f"{error}; import the bank again") from None
    return FileResponse(packed, content_type="application/x-tar", headers={"ETag": f'"{digest}"'})


@runner_endpoint("POST")
def anchor_results(request, attempt_id: int):
    """Results of anchor agents over the tasks of the attempt's bank: {results: [{task, agent, score, …}], finished: bool}.

    Whole or not at all; answered with the state that the version is in now.
    """
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    require_late_data_welcome(attempt)
    results, version = _results(body), attempt.run.bank_version
    try:
        anchors.record_anchors(version, [anchors.read_result(item) for item in results])
    except (ValidationError, InvalidModel) as error:
        raise Refused(400, "Bad anchor result", " ".join(getattr(error, "messages", [str(error)]))) from None
    found = anchors.finish_proving(version) if body.get("finished") is True else anchors.summary(version)
    return JsonResponse({"state": found.state, "sentence": found.sentence})


@runner_endpoint("POST")
def warmed_results(request, attempt_id: int):
    """How tasks came through on the node that the attempt warms: {results: [WarmedTask, …]}. Whole or not at all."""
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    require_late_data_welcome(attempt)
    try:
        found = [WarmedTask.model_validate(item) for item in _results(body)]
        warming.record_warmed(attempt.run, found)
    except (ValidationError, InvalidModel) as error:
        raise Refused(400, "Bad warming result", " ".join(getattr(error, "messages", [str(error)]))) from None
    return JsonResponse({"taken": len(found)})


def _results(body: dict) -> list[dict]:
    results = body.get("results", [])
    if not isinstance(results, list) or len(results) > MAX_RESULTS or not all(isinstance(item, dict) for item in results):
        raise Refused(400, "Bad field", f"results: a list of at most {MAX_RESULTS} objects")
    return results
