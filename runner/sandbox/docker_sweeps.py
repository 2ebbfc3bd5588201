"""What is removed by label or by age, whoever left it."""

import json
import threading
import time
from collections.abc import Callable, Mapping

from docker.errors import NotFound

from runner.sandbox.base import Leftovers
from runner.sandbox.engine import ENGINE_ERRORS, Engine, failure
from runner.sandbox.labels import EPISODE
from runner.sandbox.reasons import Reason

SWEEP_SECONDS = 600.0


def remove_labelled(engine: Engine, labels: Mapping[str, str], keep: Callable[[str], bool]) -> Leftovers:
    """Containers first: a network with one on it cannot go. `keep(episode)` is asked after listing: what starts meanwhile is not listed."""
    filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
    failed: list[str] = []
    try:
        containers = [item for item in engine.containers(all=True, filters=filters) if not _kept(item, keep)]
        gone = sum(_removed(engine.remove_container, item["Id"], failed, force=True, v=True) for item in containers)
        networks = [item for item in engine.networks(filters=filters) if not _kept(item, keep)]
        return Leftovers(gone, sum(_removed(engine.remove_network, item["Id"], failed) for item in networks), 0, tuple(failed))
    except ENGINE_ERRORS as error:
        raise failure(error, Reason.EXEC_FAILED, f"remove what is labelled {json.dumps(dict(labels))}") from None


def _kept(item: Mapping, keep: Callable[[str], bool]) -> bool:
    """A container of no episode is a build's: one that does not run, or has no living episode to be for, was left by a build that is gone."""
    episode = item["Labels"].get(EPISODE, "")
    return keep(episode) if episode else item.get("State") == "running" and keep("")


def _removed(remove: Callable, identifier: str, failed: list[str], **options) -> bool:
    try:
        remove(identifier, **options)
        return True
    except NotFound:
        return False
    except ENGINE_ERRORS as error:
        failed.append(f"{identifier[:12]}: {error}")
        return False


def sweep_images(engine: Engine, older_than: float, batch: int, stopped: threading.Event) -> Leftovers:
    """Oldest first, in batches: one prune over thousands of images blocks the engine. What could not be removed is not tried twice."""
    started, tried, removed, failed = time.monotonic(), set(), 0, []
    while time.monotonic() - started < SWEEP_SECONDS and not stopped.is_set():
        try:
            images = engine.images(filters={"dangling": True})
        except ENGINE_ERRORS as error:
            raise failure(error, Reason.EXEC_FAILED, "list dangling images") from None
        due = [item for item in images if item["Id"] not in tried and item["Created"] < time.time() - older_than]
        if not due:
            break
        for item in sorted(due, key=lambda item: item["Created"])[:batch]:
            tried.add(item["Id"])
            removed += _removed(engine.remove_image, item["Id"], failed)
    return Leftovers(images=removed, failed=tuple(failed))
