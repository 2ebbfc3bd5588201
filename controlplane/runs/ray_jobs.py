"""Client of Ray's Jobs REST and state API. Nothing of ray is imported: the control plane speaks HTTP with a deadline."""

from dataclasses import dataclass, field
from functools import cache

import httpx
from django.conf import settings

TIMEOUT_S = 5.0
LOG_TAIL = 20_000
OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


class RayError(Exception):
    """Ray did not do what was asked."""


class RayUnreachable(RayError):
    """No answer, or an answer that says nothing of the job: what Ray did is unknown."""


class RayRefused(RayError):
    """Ray understood and said no; asking again changes nothing."""


class JobExists(RayRefused):
    """A job with this submission id is there already."""


@dataclass(frozen=True)
class Job:
    """A submitted job as Ray tells it. `metadata` is what we submitted it with."""

    submission_id: str
    status: str
    message: str = ""
    job_id: str | None = None
    exit_code: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the driver; its shell tells that as 128 + the signal."""
        return self.exit_code is not None and not 0 <= self.exit_code <= 128


@dataclass(frozen=True)
class NodeReport:
    """A living node. `resource` names the Ray resource only it has; memory is in bytes."""

    name: str
    address: str
    ray_id: str
    resource: str
    cpus: float
    gpus: int
    memory: int


@dataclass(frozen=True)
class Group:
    """A placement group that Ray has not removed."""

    name: str
    state: str
    job_id: str


@cache
def house_client(base_url: str, timeout: float) -> httpx.Client:
    """A kept client for a service of this house. Making one costs more than most requests: it reads every certificate authority.

    No proxy of the environment stands between two processes of one house.
    """
    return httpx.Client(base_url=base_url, timeout=timeout, trust_env=False)


class RayJobs:
    """One Ray head. Every call raises RayUnreachable or RayRefused; none waits longer than `timeout` seconds."""

    def __init__(self, address: str | None = None, timeout: float = TIMEOUT_S):
        self.address = address or settings.RAY_ADDRESS
        self._http = house_client(self.address, timeout)
        self._headers = {"Authorization": f"Bearer {settings.RAY_AUTH_TOKEN}"} if settings.RAY_AUTH_TOKEN else {}

    def submit(self, submission_id: str, entrypoint: str, env: dict[str, str], metadata: dict[str, str], resources: dict[str, float]) -> None:
        """Start a job. Raises JobExists when it was submitted before."""
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "entrypoint_num_cpus": 0,
            "entrypoint_resources": resources,
            "runtime_env": {"env_vars": env},
            "metadata": metadata,
        }
        self._json("POST", "/api/jobs/", body)

    def job(self, submission_id: str) -> Job | None:
        """The job, or None when this Ray has never heard of it."""
        found = self._json("GET", f"/api/jobs/{submission_id}", missing_is_none=True)
        return found and _job(found)

    def jobs(self) -> list[Job]:
        return [_job(item) for item in self._json("GET", "/api/jobs/") if item.get("submission_id")]

    def stop(self, submission_id: str) -> bool:
        """Ask Ray to end the job: SIGTERM, then SIGKILL. False when there was nothing to end."""
        answer = self._json("POST", f"/api/jobs/{submission_id}/stop", missing_is_none=True)
        return bool(answer and answer.get("stopped"))

    def delete(self, submission_id: str) -> bool:
        """Forget a job that is over."""
        answer = self._json("DELETE", f"/api/jobs/{submission_id}", missing_is_none=True)
        return bool(answer and answer.get("deleted"))

    def logs(self, submission_id: str) -> str:
        """The last LOG_TAIL characters the driver printed."""
        answer = self._json("GET", f"/api/jobs/{submission_id}/logs", missing_is_none=True)
        return (answer or {}).get("logs", "")[-LOG_TAIL:]

    def nodes(self) -> list[NodeReport]:
        rows = self._state("nodes")
        return [_node(row) for row in rows if row["state"] == "ALIVE"]

    def groups(self) -> list[Group]:
        """Placement groups that still hold or ask for resources."""
        rows = self._state("placement_groups")
        return [Group(row["name"] or "", row["state"], row["creator_job_id"]) for row in rows if row["state"] != "REMOVED"]

    def _state(self, what: str) -> list[dict]:
        answer = self._json("GET", f"/api/v0/{what}?detail=1&limit=10000")
        try:
            return answer["data"]["result"]["result"]
        except (KeyError, TypeError):
            raise RayUnreachable(f"Ray's list of {what} at {self.address} has no result: {str(answer)[:200]}") from None

    def _json(self, method: str, path: str, body: dict | None = None, missing_is_none: bool = False):
        try:
            response = self._http.request(method, path, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise RayUnreachable(f"Ray at {self.address} did not answer: {error or type(error).__name__}") from None
        if response.status_code == 404 and missing_is_none:
            return None
        if response.status_code in (401, 403):
            raise RayUnreachable(f"Ray at {self.address} does not take our token; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to its own")
        if response.is_error:
            raise _error(response)
        try:
            return response.json()
        except ValueError:
            raise RayUnreachable(f"Ray at {self.address} answered {path} with something that is not JSON") from None


def _error(response: httpx.Response) -> RayError:
    # The head wraps its agent's 400 into a 500 with a traceback; its last line is the message.
    text = response.text.strip()
    last = text.rstrip(" .\n").splitlines()[-1] if text else response.reason_phrase
    if "already exists" in text:
        return JobExists(last)
    refused = response.is_client_error or "status code 400" in text
    return (RayRefused if refused else RayUnreachable)(f"Ray answered {response.status_code}: {last[:500]}")


def _job(item: dict) -> Job:
    return Job(
        submission_id=item["submission_id"],
        status=item["status"],
        message=item.get("message") or "",
        job_id=item.get("job_id"),
        exit_code=item.get("driver_exit_code"),
        metadata=item.get("metadata") or {},
    )


def _node(row: dict) -> NodeReport:
    total = row["resources_total"]
    own = [name for name in total if name.startswith("assay_node:")] or [f"node:{row['node_ip']}"]
    return NodeReport(
        name=row["node_name"] or row["node_ip"],
        address=row["node_ip"],
        ray_id=row["node_id"],
        resource=own[0],
        cpus=float(total.get("CPU", 0)),
        gpus=int(total.get("GPU", 0)),
        memory=int(total.get("memory", 0)),
    )
