"""Harbor job folders, read and written.

    python -m runner.importers.harbor_jobs JOBS [--reward-key KEY]     one JSON line a trial: what it came to, and why

A trial without a readable result.json (it is running, or died) is noted and passed over; reading again later finds it, and a trial is
known by its id, so that nothing is told twice.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.contract.atif import InvalidTrajectory, Trajectory, read_trajectory
from runner.contract.harbor_jobs import InvalidTrial, JobCounts, Trial, job_document, read_job, read_trial, trial_config, trial_document

OUTPUT_TAIL = 4000


@dataclass
class FoundTrial:
    """A trial with what lies beside it."""

    trial: Trial
    folder: Path
    trajectory: Trajectory | None = None
    verifier_output: str = ""
    artifacts: list[str] = field(default_factory=list)

    def record(self, reward_key: str) -> dict[str, Any]:
        """What the command prints."""
        trial = self.trial
        return {
            "id": trial.id,
            "task": trial.task,
            "trial": trial.name,
            "termination": str(trial.termination()),
            "graded": trial.graded,
            "score": trial.score(reward_key),
            "rewards": trial.rewards,
            "exception": trial.exception or None,
            "turns": trial.turns if trial.turns is not None else self.trajectory and len(self.trajectory.turns),
            "delivered": self.artifacts,
        }


@dataclass
class FoundJob:
    """A job's trials by id; `notes` says what was passed over and why."""

    folder: Path
    counts: JobCounts | None = None
    trials: dict[str, FoundTrial] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_jobs(root: Path) -> list[FoundJob]:
    """Every job below `root`; `root` may be a job itself."""
    jobs = [root] if _trials_of(root) else sorted(path for path in root.iterdir() if path.is_dir() and _trials_of(path))
    return [_read_job(folder) for folder in jobs]


def _trials_of(folder: Path) -> list[Path]:
    """Folders that are trials."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and _is_trial(path))


def _is_trial(folder: Path) -> bool:
    """A job has a result, too; what it does not have is an agent's or a verifier's folder, or a task in its config."""
    if (folder / "agent").is_dir() or (folder / "verifier").is_dir():
        return True
    try:
        return "trial_name" in json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False


def _read_job(folder: Path) -> FoundJob:
    job = FoundJob(folder)
    try:
        job.counts = read_job(json.loads((folder / "result.json").read_text()))
    except (OSError, ValueError) as error:
        job.notes.append(f"{folder.name}: no readable result.json ({error})")
    for place in _trials_of(folder):
        try:
            found = read_trial_folder(place)
        except (OSError, ValueError) as error:
            job.notes.append(f"{place.name}: passed over, its result.json cannot be read yet ({error})")
            continue
        job.trials[found.trial.id] = found
    return job


def read_trial_folder(folder: Path) -> FoundTrial:
    """Raises OSError, InvalidTrial, ValueError when there is no result yet."""
    text = (folder / "result.json").read_text()
    if not text.strip():
        raise InvalidTrial("result.json: empty")
    found = FoundTrial(read_trial(json.loads(text)), folder)
    try:
        found.trajectory = read_trajectory(json.loads((folder / "agent" / "trajectory.json").read_text()))
    except (OSError, ValueError, InvalidTrajectory):
        found.trajectory = None
    output = folder / "verifier" / "test-stdout.txt"
    found.verifier_output = output.read_text(errors="replace")[-OUTPUT_TAIL:] if output.is_file() else ""
    kept = folder / "artifacts" / "logs" / "artifacts"
    found.artifacts = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    return found


def folder_of(uri: str) -> Path:
    """The folder of a trial's file:// address."""
    return Path(unquote(urlsplit(uri).path))


def write_job(root: Path, name: str, identifier: str, trials: Sequence[tuple[Trial, Path | None]], started: float, finished: float) -> Path:
    """A job folder with these trials; beside each, what lies in its episode's folder (agent, verifier, artifacts)."""
    job = root / name
    job.mkdir(parents=True)
    for trial, episode in trials:
        _write_trial(job / trial.name, trial, episode)
    document = job_document(identifier, [trial for trial, _ in trials], started, finished)
    _write(job / "result.json", document)
    _write(job / "config.json", {"job_name": name, "n_concurrent_trials": 1})
    return job


def _write_trial(folder: Path, trial: Trial, episode: Path | None) -> None:
    folder.mkdir()
    for part in ("agent", "verifier", "artifacts"):
        if episode and (episode / part).is_dir():
            shutil.copytree(episode / part, folder / part)
    _write(folder / "result.json", trial_document(trial, folder.resolve().as_uri()))
    _write(folder / "config.json", trial_config(trial))
    if trial.exception:
        (folder / "exception.txt").write_text(f"{trial.exception}: {trial.message}\n{trial.traceback}")


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.importers.harbor_jobs", description=__doc__.partition("\n")[0])
    parser.add_argument("jobs", type=Path, help="a job folder, or a folder of jobs")
    parser.add_argument("--reward-key", default="reward", help="which reward counts where the task's own is not known")
    options = parser.parse_args(arguments)
    if not options.jobs.is_dir():
        print(f"{options.jobs}: no such folder", file=sys.stderr)
        return 1
    for job in read_jobs(options.jobs):
        for note in job.notes:
            print(note, file=sys.stderr)
        for found in job.trials.values():
            print(json.dumps({"job": job.folder.name, **found.record(options.reward_key)}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
