"""Telling the pages that something changed. The payload is only where to look: what changed is read from Postgres, from a cursor.

A notice that is lost, because the broker was away, costs the pages a few seconds: the hub looks for itself now and then.
"""

import json
import logging
from functools import cache

import redis
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

CLUSTER_TOPIC = "assay:cluster"
_TIMEOUT_S = 1.0


def run_topic(run_id) -> str:
    return f"assay:run:{run_id}"


def team_topic(team_id) -> str:
    return f"assay:runs:{team_id}"


def notify_run(run_id, seq: int) -> None:
    """On commit, tell the viewers of a run that its cursor reached `seq`."""
    transaction.on_commit(lambda: _publish(run_topic(run_id), {"seq": seq}))


def notify_runs(team_id, run_id) -> None:
    """On commit, tell the team's lists that a run changed."""
    transaction.on_commit(lambda: _publish(team_topic(team_id), {"id": str(run_id)}))


def notify_cluster() -> None:
    """On commit, tell the cluster page to read again."""
    transaction.on_commit(lambda: _publish(CLUSTER_TOPIC, {}))


def _publish(topic: str, payload: dict) -> None:
    try:
        _broker().publish(topic, json.dumps(payload))
    except redis.RedisError as error:
        logger.warning("live notice on %s not sent: %s", topic, error)


@cache
def _broker() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
