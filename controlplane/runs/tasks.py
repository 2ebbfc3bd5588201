"""Celery's side of the reconciler. Every task may be lost or repeated: the next tick does its work again."""

from celery import shared_task

from controlplane.runs import reconcile as reconciler

TICK_LIMIT_S = 30
RUN_LIMIT_S = 30


@shared_task(soft_time_limit=TICK_LIMIT_S, time_limit=TICK_LIMIT_S + 5)
def reconcile() -> None:
    reconciler.tick(lambda run_id: reconcile_run.apply_async([run_id], expires=reconciler.LEASE.total_seconds(), retry=False))


@shared_task(soft_time_limit=RUN_LIMIT_S, time_limit=RUN_LIMIT_S + 5)
def reconcile_run(run_id: str) -> None:
    reconciler.reconcile_run(run_id)
