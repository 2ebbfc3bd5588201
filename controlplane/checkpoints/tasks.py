from celery import shared_task

from controlplane.checkpoints import services


@shared_task
def apply_retention(run_id: str) -> None:
    """Delete what no rule of the run keeps. May be repeated."""
    services.apply_retention(run_id)
