"""Metrics of a step whose episodes ran in simulators: success, errors, and how the simulators fare."""

from collections.abc import Sequence

import numpy as np

from runner.contract.termination import Termination
from runner.reporting.metrics import Metrics
from runner.rollouts.episodes import Outcome

_ERRORS = {
    Termination.ENV_CRASH,
    Termination.ENV_TIMEOUT,
    Termination.ENV_OOM,
    Termination.ENV_BAD_TASK,
    Termination.REPLAY_MISMATCH,
}


def simulator_metrics(outcomes: Sequence[Outcome]) -> Metrics:
    """Over all tries of a step, the replaced ones among them; empty where none tells of success and none failed."""
    graded = [outcome for outcome in outcomes if outcome.sample.reward is not None and "success" in outcome.evidence]
    failed = [outcome for outcome in outcomes if outcome.termination in _ERRORS]
    if not graded and not failed:
        return {}
    metrics = {"env/error_fraction": len(failed) / len(outcomes)}
    if graded:
        metrics["episode/success_rate"] = float(np.mean([bool(outcome.evidence["success"]) for outcome in graded]))
        metrics["episode/ambiguous_mean"] = float(np.mean([outcome.evidence.get("ambiguous", 0) for outcome in graded]))
    restarts: dict[str, int] = {}
    for outcome in outcomes:
        restarts[outcome.worker] = max(restarts.get(outcome.worker, 0), outcome.facts.get("restarts", 0))
    metrics["env/restart_count"] = float(sum(restarts.values()))
    if slow := [outcome.facts["step_ms_p95"] for outcome in outcomes if "step_ms_p95" in outcome.facts]:
        metrics["env/step_ms_p95"] = float(np.median(slow))
    return metrics
