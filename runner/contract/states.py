"""States and their allowed transitions, as data.

The control plane's compare-and-set, the property tests and the documentation read these tables.
"""

from enum import StrEnum


class RunState(StrEnum):
    DRAFT = "draft"
    QUEUED = "queued"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class AttemptState(StrEnum):
    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class EpisodeState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    DONE = "done"
    ABORTED = "aborted"


class CheckpointState(StrEnum):
    WRITING = "writing"
    COMPLETE = "complete"
    BROKEN = "broken"
    DELETED = "deleted"


_ATTEMPT_ENDS = {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST}
RUN_ENDS = {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST}

TRANSITIONS: dict[type[StrEnum], dict[StrEnum, set]] = {
    RunState: {
        RunState.DRAFT: {RunState.QUEUED},
        RunState.QUEUED: {RunState.ACTIVE, RunState.STOPPED},
        RunState.ACTIVE: RUN_ENDS,
        **{end: {RunState.QUEUED} for end in RUN_ENDS},
    },
    AttemptState: {
        AttemptState.GRANTED: {AttemptState.STARTING, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST},
        AttemptState.STARTING: {AttemptState.RUNNING, AttemptState.STOPPING, *_ATTEMPT_ENDS},
        AttemptState.RUNNING: {AttemptState.STOPPING, *_ATTEMPT_ENDS},
        AttemptState.STOPPING: set(_ATTEMPT_ENDS),
        **{end: set() for end in _ATTEMPT_ENDS},
    },
    EpisodeState: {
        EpisodeState.QUEUED: {EpisodeState.RUNNING, EpisodeState.ABORTED},
        EpisodeState.RUNNING: {EpisodeState.GRADING, EpisodeState.ABORTED},
        EpisodeState.GRADING: {EpisodeState.DONE, EpisodeState.ABORTED},
        EpisodeState.DONE: set(),
        EpisodeState.ABORTED: set(),
    },
    CheckpointState: {
        CheckpointState.WRITING: {CheckpointState.COMPLETE, CheckpointState.BROKEN},
        CheckpointState.COMPLETE: {CheckpointState.DELETED, CheckpointState.BROKEN},
        CheckpointState.BROKEN: {CheckpointState.DELETED},
        CheckpointState.DELETED: set(),
    },
}


def is_allowed(source: StrEnum, target: StrEnum) -> bool:
    """Whether the table of `source`'s kind allows moving to `target`."""
    return target in TRANSITIONS[type(source)][source]


def is_final(state: StrEnum) -> bool:
    """Whether `state` is an end: nothing follows, or, for a run, only a new attempt."""
    return state in RUN_ENDS or state in _ATTEMPT_ENDS or not TRANSITIONS[type(state)][state]
