from celery import shared_task

from controlplane.alerts import services


@shared_task(soft_time_limit=60)
def evaluate() -> None:
    """Hold every active run to its rules."""
    services.evaluate_all()
