"""The learner's processes, asked as one: all are called, the first answers, and without one of them there is no learner."""

import time
from collections.abc import Callable
from typing import Any

import ray

from runner.gang_errors import GONE, ProcessLost

# A process that is gone makes the others fail in the middle of a step, and they may say so before Ray does.
INQUIRY_SECONDS = 30.0

Call = list
"""References to what each process answers, the first process first."""


class LearnerGroup:
    """`actors` are LearnerActors by name, rank by rank; `one_of` waits for one of several references: (done, pending)."""

    def __init__(self, actors: dict[str, Any], one_of: Callable[[list], tuple[list, list]]):
        self.names, self.actors, self.one_of = list(actors), list(actors.values()), one_of

    def ask(self, method: str, *arguments) -> Call:
        """Start the actors' `method` everywhere, in the same order as every other call."""
        if len(self.actors) > 1:
            # Stored once, not sent once a process.
            arguments = tuple(ray.put(item) for item in arguments)
        return [getattr(actor, method).remote(*arguments) for actor in self.actors]

    def ask_first(self, method: str, *arguments) -> Call:
        """The same of the first process alone."""
        return [getattr(self.actors[0], method).remote(*arguments)]

    def wait(self, call: Call) -> Any:
        """The first process's answer, when all have answered. Raises ProcessLost when one is gone, or what one raised."""
        answers, pending = {}, list(call)
        while pending:
            (done, *_), pending = self.one_of(pending)
            try:
                answers[done] = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                self._inquire(call, pending)
                raise error.as_instanceof_cause() from None
            except GONE as error:
                raise self._lost(call, done, error) from error
        return answers[call[0]]

    def _inquire(self, call: Call, pending: list) -> None:
        """Raises ProcessLost when what one process raised comes of another's end."""
        deadline = time.monotonic() + INQUIRY_SECONDS
        while pending and (left := deadline - time.monotonic()) > 0:
            done, pending = ray.wait(pending, timeout=left)
            for reference in done:
                try:
                    ray.get(reference)
                except ray.exceptions.RayTaskError:
                    continue
                except GONE as error:
                    raise self._lost(call, reference, error) from error

    def _lost(self, call: Call, reference: Any, error: Exception) -> ProcessLost:
        name = self.names[call.index(reference)]
        which = "the learner's process" if name == self.names[0] else f"the learner's process {name}"
        return ProcessLost(f"{which} is gone: {error}")
