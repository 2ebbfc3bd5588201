"""Housekeeping: blobs that no row names."""

from time import time

from celery import shared_task

from controlplane import storage
from controlplane.banks.models import BankVersion
from controlplane.episodes.models import Episode

_NAMED_BY = ((Episode, "sampled"), (Episode, "trained"), (Episode, "token_texts"), (BankVersion, "blob"))


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
