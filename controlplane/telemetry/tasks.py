"""Housekeeping: blobs that no row names, records that a driver could not deliver."""

import os
import subprocess
import sys
from time import time

from celery import shared_task
from django.utils import timezone

from controlplane import storage
from controlplane.banks.imports import SECRETS
from controlplane.banks.models import BankFile, BankVersion
from controlplane.cluster.models import GrantState
from controlplane.env import CHECKOUT
from controlplane.episodes.models import Episode
from controlplane.runs.attempt_auth import LATE_DATA
from controlplane.runs.models import Attempt
from controlplane.runs.paths import attempt_folder
from controlplane.telemetry.models import Pack

REPLAY_S = 240
LOOK_FOR_LEFTOVERS_S = 60.0

_NAMED_BY = (
    (Pack, "name"),
    (Episode, "sampled"),
    (Episode, "trained"),
    (Episode, "token_texts"),
    (BankVersion, "blob"),
    (BankFile, "digest"),
)


@shared_task
def sweep() -> int:
    """Sweep one of the store's 256 folders, another one every minute; returns how many blobs went."""
    return storage.sweep(storage.PREFIXES[int(time() // 60) % len(storage.PREFIXES)], named_blobs)


def named_blobs(digests: list[str]) -> set[str]:
    """Which of `digests` a row names."""
    found: set[str] = set()
    for model, field in _NAMED_BY:
        left = [digest for digest in digests if digest not in found]
        found.update(model.objects.filter(**{f"{field}__in": left}).values_list(field, flat=True) if left else ())
    return found


@shared_task
def find_leftovers() -> int:
    """Ask for the delivery of what ended attempts still have on disk, as long as it is welcome; returns how many there are.

    The end of an attempt asks once, but the web process may be away for longer than one delivery tries.
    """
    ended = Attempt.objects.filter(ended_at__gt=timezone.now() - LATE_DATA, grant__state=GrantState.RELEASED).only("run_id", "number")
    found = [folder for attempt in ended if (folder := attempt_folder(attempt) / "connection.json").exists()]
    for connection in found:
        deliver_leftovers.apply_async([str(connection.parent)], expires=LOOK_FOR_LEFTOVERS_S, retry=False)
    return len(found)


@shared_task(soft_time_limit=REPLAY_S + 30, time_limit=REPLAY_S + 40)
def deliver_leftovers(folder: str) -> None:
    """Deliver what the emitters of an ended attempt left on disk. Repeating it is harmless: each batch counts once."""
    command = [sys.executable, "-m", "runner.reporting", "replay", folder, "--timeout", str(REPLAY_S)]
    environment = {key: value for key, value in os.environ.items() if key not in SECRETS}
    subprocess.run(command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, check=False, timeout=REPLAY_S + 20)
