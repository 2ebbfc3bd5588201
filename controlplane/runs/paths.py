from pathlib import Path

from django.conf import settings


def run_folder(run_id) -> Path:
    """Where a run's checkpoints, spools and exit records lie: ASSAY_STORAGE/runs/<run id>."""
    return Path(settings.ASSAY_STORAGE) / "runs" / str(run_id)


def attempt_folder(attempt) -> Path:
    """Spool, exit record and log of one attempt."""
    return run_folder(attempt.run_id) / "attempts" / str(attempt.number)
