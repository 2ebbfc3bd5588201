"""The Celery app. Celery only nudges: a lost message costs one tick, because the truth is in Postgres."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

RECONCILE_EVERY_S = 2.0


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
        beat_schedule=beat_schedule(),
    )
    app.autodiscover_tasks()
    return app


def beat_schedule() -> dict:
    # A tick that waited longer than its period is worthless: the next one does its work.
    return {
        "reconcile": {"task": "controlplane.runs.tasks.reconcile", "schedule": RECONCILE_EVERY_S, "options": {"expires": RECONCILE_EVERY_S}},
        "alerts": {"task": "controlplane.alerts.tasks.evaluate", "schedule": 10.0, "options": {"expires": 10.0}},
        "sweep": {"task": "controlplane.telemetry.tasks.sweep", "schedule": 60.0, "options": {"expires": 60.0}},
    }


app = configured_app()
