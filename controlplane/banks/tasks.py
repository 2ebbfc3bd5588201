"""Celery entry of an import: the row says what to do, the message only when."""

from celery import shared_task

from controlplane.banks.imports import TIME_LIMIT_S, perform_import
from controlplane.banks.models import BankImport


@shared_task(time_limit=TIME_LIMIT_S + 60)
def run_import(job_id: str) -> None:
    perform_import(BankImport.objects.select_related("team", "created_by").get(pk=job_id))
