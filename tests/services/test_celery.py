"""What Celery is told: late acknowledgement, expiring ticks, and long work kept away from the reconciler."""

import pytest

from controlplane.celery import BULK, NUDGES, app, broker_url
from controlplane.services.application import WORKERS


def queue_of(task: str) -> str:
    return app.amqp.router.route({}, task)["queue"].name


def test_a_lost_worker_loses_no_task():
    assert app.conf.task_acks_late and app.conf.task_reject_on_worker_lost and app.conf.worker_prefetch_multiplier == 1


def test_every_scheduled_task_exists_and_expires_with_its_period():
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] == entry["schedule"]


@pytest.mark.parametrize("task", ["runs.tasks.reconcile", "runs.tasks.reconcile_run", "alerts.tasks.evaluate"])
def test_the_reconciler_shares_a_worker_with_nothing_long(task):
    assert queue_of(f"controlplane.{task}") == NUDGES


def test_long_tasks_and_all_queues_have_a_worker():
    assert queue_of("controlplane.banks.tasks.run_import") == queue_of("controlplane.checkpoints.tasks.apply_retention") == BULK
    assert {queue for queue, _ in WORKERS.values()} == {NUDGES, BULK}


def test_a_socket_url_in_celerys_spelling():
    assert broker_url("unix:///tmp/a/broker.sock") == "redis+socket:///tmp/a/broker.sock"
    assert broker_url("redis://:pw@host:6379/0") == "redis://:pw@host:6379/0"
