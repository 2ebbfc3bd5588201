"""The Celery app. Celery only nudges: a lost message costs one tick, because the truth is in Postgres."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

RECONCILE_EVERY_S = 2.0
# Two queues, each with its own worker: no import and no deletion, however long, keeps the reconciler waiting.
NUDGES, BULK = "nudges", "bulk"
BULK_TASKS = ("controlplane.banks.tasks.*", "controlplane.checkpoints.tasks.*", "controlplane.telemetry.tasks.*")


def broker_url(redis_url: str) -> str:
    """Celery's spelling of a redis-py URL: a socket path needs its own scheme."""
    return redis_url.replace("unix://", "redis+socket://", 1)


def configured_app() -> Celery:
    from django.conf import settings

    app = Celery("assay", broker=broker_url(settings.REDIS_URL), set_as_current=True)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_time_limit=300,
        timezone="UTC",
        task_default_queue=NUDGES,
        task_routes={name: {"queue": BULK} for name in BULK_TASKS},
        beat_schedule=beat_schedule(),
    )
    app.autodiscover_tasks()
    return app


def beat_schedule() -> dict:
    return {
        "reconcile": every(RECONCILE_EVERY_S, "controlplane.runs.tasks.reconcile"),
        "alerts": every(10.0, "controlplane.alerts.tasks.evaluate"),
        "sweep": every(60.0, "controlplane.telemetry.tasks.sweep"),
        "leftovers": every(60.0, "controlplane.telemetry.tasks.find_leftovers"),
    }


def every(seconds: float, task: str) -> dict:
    # A tick that waited longer than its period is worthless: the next one does its work.
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app = configured_app()
