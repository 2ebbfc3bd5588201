"""What is wrong with a run besides its curves: no step, no word from its runner, no disk."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from django.conf import settings
from django.utils import timezone

from controlplane.alerts.rules import COLLAPSE_FALL, collapse
from controlplane.runs.forecast import existing, size, spoken_time
from controlplane.runs.inquiry import CONTACT_S
from controlplane.runs.models import Attempt, Run
from controlplane.telemetry.selectors import Tail, idlest_sample, slowest_sample
from runner.contract.metrics import STALL_SECONDS
from runner.contract.states import AttemptState

STEP_TIME, TOKENS_PER_TURN, AT_TURN_LIMIT = "timing_s/step", "episode/tokens_per_turn", "termination/max_turns_exceeded/fraction"
WATCHED = (STEP_TIME, TOKENS_PER_TURN, AT_TURN_LIMIT)
IN_CONTAINERS = "harbor"
ENGINE_SLOW_S, ENGINE_WINDOW_S = 20.0, 900.0
GPU_BUSY, GPU_WINDOW_S = 5.0, 300.0
# Limits that a project may set for itself, by rule.
COLLAPSE, ENGINE, GPU = "collapse pattern", "container engine", "idle GPU"
MOVABLE = {COLLAPSE: COLLAPSE_FALL, ENGINE: ENGINE_SLOW_S, GPU: GPU_BUSY}
STEPS_FOR_MEDIAN = 20
STALL_MEDIANS = 5
DISK_WARNING, DISK_CRITICAL = 0.90, 0.97


@dataclass(frozen=True)
class Condition:
    """One rule that is not over a series. `status` is ok, warning, critical or unknown."""

    rule: str
    title: str
    status: str
    value: float | None
    limit: float
    limit_text: str
    message: str
    advice: str

    @property
    def broken(self) -> bool:
        return self.status in ("warning", "critical")


def conditions(run: Run, attempt: Attempt | None, tails: Mapping[str, Tail], own: Mapping[str, float]) -> list[Condition]:
    """`tails` holds the WATCHED series, `own` the limits that the run's project set for itself."""
    found, limits = [progress(attempt, tails[STEP_TIME]), contact(attempt), disk()], {**MOVABLE, **own}
    if run.environment == IN_CONTAINERS:
        found += [truncation(tails, limits[COLLAPSE]), engine(run, limits[ENGINE])]
    if attempt and attempt.devices:
        found.append(idle_gpu(run, limits[GPU]))
    return found


def truncation(tails: Mapping[str, Tail], most_fall: float) -> Condition:
    """Replies shrink while more episodes reach the turn limit: how unmasked truncation ruins a run."""
    finding = collapse(tails[TOKENS_PER_TURN].value, tails[AT_TURN_LIMIT].value, most_fall)
    advice = "Stop, and go on from a checkpoint before the fall with train_truncated off."
    fixed = {"rule": COLLAPSE, "title": "Shorter turns, more cut off", "limit": most_fall, "limit_text": f"≤ {most_fall:.0%} fall"}
    status = "unknown" if finding.value is None else "critical" if finding.broken else "ok"
    told = f"tokens a turn fell by {finding.value or 0:.0%} while the turn limit is reached more often"
    return Condition(status=status, value=finding.value, message=told, advice=advice, **fixed)


def engine(run: Run, slow_s: float) -> Condition:
    """A container engine that answers slowly takes work and then hangs; one that does not answer at all has no newer sample."""
    advice = "Take the node out, end its episodes, restart the engine. Its image cache survives; never prune the builder's."
    limit = {"limit": slow_s, "limit_text": f"≤ {slow_s:g} s"}
    fixed = {"rule": ENGINE, "title": "Engine latency", "advice": advice, **limit}
    found = slowest_sample(run, "docker/ps_latency_s/", within_s=ENGINE_WINDOW_S)
    if found is None:
        return Condition(status="unknown", value=None, message="", **fixed)
    name, seconds = found
    status = "critical" if seconds > slow_s else "ok"
    return Condition(status=status, value=seconds, message=f"{name.rpartition('/')[2]} takes {seconds:.1f} s to list its containers", **fixed)


def idle_gpu(run: Run, least: float) -> Condition:
    """A GPU of the run on which hardly a kernel ran for GPU_WINDOW_S."""
    advice = "Look at the components: which one waits, and for whom? A GPU that the run does not use should not be asked for."
    fixed = {"rule": GPU, "title": "Idlest GPU", "limit": least, "limit_text": f"≥ {least:g} %", "advice": advice}
    found = idlest_sample(run, "^gpu/.*/utilisation$", over_s=GPU_WINDOW_S)
    if found is None:
        return Condition(status="unknown", value=None, message="", **fixed)
    name, busy = found
    told = f"GPU {name.split('/')[1]} was busy {busy:.0f} % at most in the last {spoken_time(GPU_WINDOW_S)}"
    return Condition(status="critical" if busy < least else "ok", value=busy, message=told, **fixed)


def progress(attempt: Attempt | None, step_times: Tail) -> Condition:
    """No step for max(STALL_SECONDS, 5 × the median step) while the attempt runs."""
    finite = step_times.value[np.isfinite(step_times.value)]
    median = float(np.median(finite)) if len(finite) else 0.0
    limit = max(STALL_SECONDS, STALL_MEDIANS * median)
    advice = "Look at the components: which one waits, and for whom? Stop and resume if nobody moves."
    fixed = {"rule": "progress", "title": "Since the last step", "limit": limit, "limit_text": f"≤ {spoken_time(limit)}", "advice": advice}
    if attempt is None or attempt.state != AttemptState.RUNNING or attempt.running_at is None:
        return Condition(status="unknown", value=None, message="", **fixed)
    since = max(attempt.running_at.timestamp(), float(step_times.wall[-1]) if len(step_times.wall) else 0.0)
    silent = timezone.now().timestamp() - since
    status = "critical" if silent > limit else "ok"
    return Condition(status=status, value=silent, message=f"no step for {spoken_time(silent)}; the median step takes {median:.1f} s", **fixed)


def contact(attempt: Attempt | None) -> Condition:
    advice = "The inquiry asks Ray and the node; only it may end the attempt. Look at the node and the network."
    fixed = {"rule": "contact", "title": "Contact", "limit": CONTACT_S, "limit_text": f"≤ {CONTACT_S:.0f} s", "advice": advice}
    heard = attempt and (attempt.last_heartbeat_at or attempt.claimed_at)
    if not heard or attempt.ended_at:
        return Condition(status="unknown", value=None, message="", **fixed)
    silent = (timezone.now() - heard).total_seconds()
    status = "critical" if attempt.contact_lost_at else "ok"
    return Condition(status=status, value=silent, message=f"no heartbeat for {spoken_time(silent)}", **fixed)


def disk() -> Condition:
    usage = shutil.disk_usage(existing(Path(settings.ASSAY_STORAGE)))
    used = (usage.total - usage.free) / usage.total
    status = "critical" if used > DISK_CRITICAL else "warning" if used > DISK_WARNING else "ok"
    message = f"the storage is {used:.0%} full; {size(usage.free)} are free"
    advice = "Unpin or delete checkpoints, or give the storage more room, before the next checkpoint is written."
    return Condition("disk", "Storage used", status, used, DISK_WARNING, f"≤ {DISK_WARNING:.0%}", message, advice)
