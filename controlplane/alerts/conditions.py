"""What is wrong with a run besides its curves: no step, no word from its runner, no disk."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from django.conf import settings
from django.utils import timezone

from controlplane.runs.forecast import existing, size, spoken_time
from controlplane.runs.inquiry import CONTACT_S
from controlplane.runs.models import Attempt, Run
from controlplane.telemetry.selectors import Tail
from runner.contract.metrics import STALL_SECONDS
from runner.contract.states import AttemptState

STEP_TIME = "timing_s/step"
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


def conditions(run: Run, attempt: Attempt | None, step_times: Tail) -> list[Condition]:
    return [progress(attempt, step_times), contact(attempt), disk()]


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
