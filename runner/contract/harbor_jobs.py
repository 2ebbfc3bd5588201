"""Job and trial folders in Harbor's layout: documents written with the current keys, read with old and new ones.

    <jobs>/<job>/{config.json, result.json, job.log}
    <jobs>/<job>/<trial>/{config.json, result.json, exception.txt, agent/, verifier/, artifacts/}

A trial is one episode. Rewards stay as the verifier wrote them: a trial without any has None, never 0.
"""

import secrets
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from runner.contract.taxonomy import classify, episode_termination
from runner.contract.termination import HANDLING, Termination

PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")
NAME_LENGTH, SUFFIX_LENGTH = 32, 7
ADHOC = "adhoc"


class InvalidTrial(ValueError):
    """A result.json is none; the message names the field."""


@dataclass
class Trial:
    """One episode as Harbor keeps it. Times are Unix seconds; `rewards` is None when nothing was measured."""

    id: str
    task: str
    name: str
    task_path: str = ""
    source: str = ""
    checksum: str = ""
    agent: str = ""
    agent_version: str = ""
    model: str = ""
    rewards: dict[str, float] | None = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    turns: int | None = None
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    started: float | None = None
    finished: float | None = None
    phases: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    verifier_mode: str = "separate"
    summaries: int = 0

    @property
    def graded(self) -> bool:
        return bool(self.rewards)

    def score(self, reward_key: str = "reward") -> float | None:
        """The reward that counts; None when it was not measured."""
        return self.rewards.get(reward_key) if self.rewards else None

    def termination(self, max_turns: int | None = None) -> Termination:
        """Why it ended, by its exception, turns and rewards (contract.taxonomy)."""
        failure = classify(self.exception, self.message) if self.exception else None
        turns = self.turns if self.turns is not None else int(bool(self.output_tokens) or self.graded)
        at_max = bool(max_turns and turns >= max_turns)
        graded = self.graded and not self.rewards.get("grader_error")
        known = {"exception": bool(self.exception), "turns": turns, "at_length": False, "at_max_turns": at_max, "graded": graded}
        return episode_termination(failure, **known)


def trial_name(task: str) -> str:
    """Short name of the task, cut, with a random end."""
    letters = string.ascii_letters + string.digits
    return f"{task.rpartition('/')[2][:NAME_LENGTH]}__{''.join(secrets.choice(letters) for _ in range(SUFFIX_LENGTH))}"


def job_name(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d__%H-%M-%S")


# ---------------------------------------------------------------- writing
def trial_document(trial: Trial, uri: str) -> dict[str, Any]:
    """result.json of a trial; `uri` is the file:// address of its folder."""
    failed = trial.exception and {
        "exception_type": trial.exception,
        "exception_message": trial.message,
        "exception_traceback": trial.traceback,
        "occurred_at": _stamp(trial.finished),
    }
    return {
        "id": trial.id,
        "task_name": trial.task,
        "trial_name": trial.name,
        "trial_uri": uri,
        "task_id": {"path": trial.task_path},
        "source": trial.source or None,
        "task_checksum": trial.checksum,
        "config": trial_config(trial),
        "agent_info": {"name": trial.agent, "version": trial.agent_version, "model_info": _model(trial.model)},
        "agent_result": {
            "n_input_tokens": trial.input_tokens,
            "n_cache_tokens": trial.cache_tokens,
            "n_output_tokens": trial.output_tokens,
            "cost_usd": trial.cost_usd,
            "rollout_details": None,
            "metadata": {"n_episodes": trial.turns, "summarization_count": trial.summaries},
        },
        "verifier_result": {"rewards": trial.rewards} if trial.rewards else None,
        "verifier_environment_mode": trial.verifier_mode,
        "exception_info": failed or None,
        "started_at": _stamp(trial.started),
        "finished_at": _stamp(trial.finished),
        **{phase: _span(trial.phases.get(phase)) for phase in PHASES},
        "step_results": None,
    }


def trial_config(trial: Trial) -> dict[str, Any]:
    """config.json of a trial."""
    return {"task": {"path": trial.task_path}, "trial_name": trial.name, "agent": {"name": trial.agent, "model_name": trial.model or None}}


def job_document(
    identifier: str, trials: Sequence[Trial], started: float, finished: float | None, reward_key: str = "reward"
) -> dict[str, Any]:
    """result.json of a job."""
    errors = sum(bool(trial.exception) for trial in trials)
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups["__".join((trial.agent, trial.model or "none", trial.source or ADHOC))].append(trial)
    stats = {
        "n_completed_trials": len(trials) - errors,
        "n_errored_trials": errors,
        "n_running_trials": 0,
        "n_pending_trials": 0,
        "n_cancelled_trials": sum(trial.termination() is Termination.CANCELLED for trial in trials),
        "n_retries": 0,
        "evals": {name: _group(members, reward_key) for name, members in sorted(groups.items())},
        **{f"n_{kind}_tokens": sum(getattr(trial, f"{kind}_tokens") or 0 for trial in trials) for kind in ("input", "cache", "output")},
        "cost_usd": sum(trial.cost_usd or 0.0 for trial in trials),
    }
    times = {"started_at": _stamp(started), "updated_at": _stamp(finished or started), "finished_at": _stamp(finished)}
    return {"id": identifier, **times, "n_total_trials": len(trials), "stats": stats}


def _group(trials: Sequence[Trial], reward_key: str) -> dict[str, Any]:
    rewards: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    failures: dict[str, list[str]] = defaultdict(list)
    for trial in trials:
        for key, value in (trial.rewards or {}).items():
            rewards[key][f"{value:g}"].append(trial.name)
        if trial.exception:
            failures[trial.exception].append(trial.name)
    scores = [score for trial in trials if (score := trial.score(reward_key)) is not None]
    return {
        "n_trials": len(trials),
        "n_errors": sum(map(len, failures.values())),
        "metrics": [{"mean": sum(scores) / len(scores), "n": len(scores)}] if scores else [],
        "pass_at_k": {},
        "reward_stats": {key: dict(values) for key, values in rewards.items()},
        "exception_stats": dict(failures),
    }


def _span(times: tuple[float | None, float | None] | None) -> dict[str, str | None] | None:
    return times and {"started_at": _stamp(times[0]), "finished_at": _stamp(times[1])}


def _stamp(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


def _model(name: str) -> dict[str, str | None] | None:
    provider, _, short = name.rpartition("/")
    return {"name": short, "provider": provider or None} if name else None


# ---------------------------------------------------------------- reading
def read_trial(document: Any) -> Trial:
    """Raises InvalidTrial."""
    if not isinstance(document, dict) or not isinstance(document.get("task_name"), str):
        raise InvalidTrial("task_name: missing; this is no result of a trial")
    told, info = _table(document, "agent_result"), _table(document, "agent_info")
    failed, metadata = _table(document, "exception_info"), _table(told, "metadata")
    model, task_id = _table(info, "model_info"), document.get("task_id")
    return Trial(
        id=str(document.get("id") or document.get("trial_name") or ""),
        task=document["task_name"],
        name=str(document.get("trial_name") or ""),
        task_path=str(task_id.get("path") or "") if isinstance(task_id, dict) else str(task_id or ""),
        source=str(document.get("source") or ""),
        checksum=str(document.get("task_checksum") or ""),
        agent=str(info.get("name") or ""),
        agent_version=str(info.get("version") or ""),
        model="/".join(str(part) for part in (model.get("provider"), model.get("name")) if part),
        rewards=_rewards(document),
        exception=str(failed.get("exception_type") or ""),
        message=str(failed.get("exception_message") or ""),
        traceback=str(failed.get("exception_traceback") or ""),
        turns=_whole(metadata.get("n_episodes")),
        **{f"{kind}_tokens": _whole(told.get(f"n_{kind}_tokens")) for kind in ("input", "cache", "output")},
        cost_usd=told.get("cost_usd") if isinstance(told.get("cost_usd"), int | float) else None,
        started=_moment(document.get("started_at")),
        finished=_moment(document.get("finished_at")),
        phases={phase: _times(span) for phase in PHASES if (span := _table(document, phase))},
        verifier_mode=str(document.get("verifier_environment_mode") or "shared"),
        summaries=_whole(metadata.get("summarization_count")) or 0,
    )


@dataclass(frozen=True)
class JobCounts:
    """What a job says of itself; a running one has unfinished trials."""

    total: int
    completed: int
    errors: int


def read_job(document: Any) -> JobCounts:
    """From result.json of a job, whose statistics have had two sets of keys. Raises InvalidTrial."""
    if not isinstance(document, dict):
        raise InvalidTrial("result.json of a job is an object")
    stats = _table(document, "stats")
    errors = _whole(stats.get("n_errored_trials", stats.get("n_errors"))) or 0
    finished = _whole(stats.get("n_trials"))
    completed = _whole(stats.get("n_completed_trials")) if "n_completed_trials" in stats else (finished or 0) - errors
    total = _whole(document.get("n_total_trials"))
    return JobCounts(total if total is not None else (finished or 0), completed or 0, errors)


def _rewards(document: Mapping[str, Any]) -> dict[str, float] | None:
    found = _table(document, "verifier_result").get("rewards")
    if not isinstance(found, dict):
        return None
    numbers = {str(key): float(value) for key, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return numbers or None


def _times(span: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return _moment(span.get("started_at")), _moment(span.get("finished_at"))


def _table(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(stamp: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(str(stamp).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def is_trusted(trial: Trial) -> bool:
    """Whether its reward counts: no exception, a spent budget, or a turn limit."""
    return HANDLING[trial.termination()].reward != "null"
