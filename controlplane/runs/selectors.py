"""Reads over runs. The list page's own queries are in listing.py."""

import json

from controlplane.runs.forms.diff import Change, diff, differing_keys
from controlplane.runs.models import Run


def resolved_document(run: Run) -> dict:
    """The configuration as it is executed."""
    return json.loads(bytes(run.config))


def run_detail(user, run_id) -> Run:
    """A run with what its page's header shows. Raises Run.DoesNotExist, also for runs of other teams."""
    runs = Run.objects.for_user(user).select_related("project__team", "owner", "parent", "bank_version__bank")
    return runs.prefetch_related("attempts__grant__shares__node", "attempts__resumed_from").get(pk=run_id)


def events(run: Run):
    """The run's log, oldest first."""
    return run.events.select_related("actor").order_by("id")


def difference_from_parent(run: Run) -> list[Change]:
    """What the run changed; empty without a parent."""
    return diff(resolved_document(run.parent), resolved_document(run)) if run.parent else []


def differences(runs: list[Run]) -> dict[str, list]:
    """JSON pointer → one value a run (ABSENT where it has none), only where they differ. Takes 2 to 10 runs."""
    return differing_keys([resolved_document(run) for run in runs])
