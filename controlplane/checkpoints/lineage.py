"""What a checkpoint's lineage trained on, against what a run means to hold out."""

from collections.abc import Iterable
from uuid import UUID

from controlplane.checkpoints.models import Checkpoint


def overlap(checkpoint: UUID | str, environment: str, keys: Iterable[str]) -> list[str]:
    """Those task keys of `environment` that the checkpoint, or one it descends from, was trained on."""
    told = Checkpoint.objects.filter(pk=checkpoint).values_list("trained_on", flat=True).first() or []
    learned = {name.removeprefix(f"{environment}/") for name in told if name.startswith(f"{environment}/")}
    return sorted(learned & set(keys))
