"""Weight sync that proves itself: after every push, learner and workers score the same fixed tokens."""

import time

import numpy as np

from runner.assignment import Bank
from runner.contract.run_config import RunConfig
from runner.gang import Gang
from runner.reporting.emitter import Emitter
from runner.rollouts.dispatcher import Dispatcher

# |difference| in nats between equal weights on two sides: the largest in float32, where kernels only order sums differently. In bfloat16 two
# implementations round apart at every layer, and the mean decides: 0.05 was measured for 135 M parameters, single tokens up to 0.4.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}
PROBE_TASKS = 2
PROBE_TOKENS = 64


class WeightSyncError(RuntimeError):
    """weight_sync: a worker does not hold the learner's weights."""


class WeightSync:
    """Keeps the workers at the learner's version. `dispatcher` is told the version that new episodes start from."""

    def __init__(self, gang: Gang, dispatcher: Dispatcher, emitter: Emitter, bank: Bank, config: RunConfig):
        self.gang, self.dispatcher, self.emitter, self.config = gang, dispatcher, emitter, config
        self.keys = [task.key for task in (bank.train or bank.held_out)[:PROBE_TASKS]]
        self.version: int | None = None
        self._probe: list[list[int]] = []

    def push(self, version: int) -> dict[str, float]:
        """Bring every worker to `version`; metrics of the way and the probe. Nothing to do when they are there. Raises WeightSyncError.

        Engines that slept while the learner learned are awake afterwards.
        """
        self.gang.wake()
        if version == self.version:
            return {}
        if not self._probe:
            self._probe = self.gang.every_worker("probe", self.keys, PROBE_TOKENS)[0]
        begun = time.perf_counter()
        arrived = self.gang.push_weights()
        seconds = time.perf_counter() - begun
        expected = self.gang.ask_learner("score", self._probe)
        found = self.gang.every_worker("score", self._probe)
        difference = self._difference(self.gang.wait(expected), found)
        tolerance = TOLERANCE[self.config.model.dtype]
        if set(arrived) != {version} or not difference <= tolerance:
            self.emitter.event("weight_sync_probe", version, {"difference": difference, "tolerance": tolerance, "versions": arrived})
            gap = f"differ by {difference:.3g} nats from version {version} (at most {tolerance})"
            raise WeightSyncError(f"weight_sync: workers hold versions {arrived} and {gap}")
        self.version = self.dispatcher.version = version
        return {"weight_sync/probe_difference": difference, "timing_s/weight_transfer": seconds}

    def _difference(self, expected: list[np.ndarray], found: list[list[np.ndarray]]) -> float:
        """Over a worker's tokens, of the worker that is farthest off: the largest in float32, else the mean."""
        # The first token of a sequence has no log-prob. Any other that is not a number must not pass as equal.
        gaps = [np.concatenate([np.abs(ours - theirs)[1:] for ours, theirs in zip(expected, scores, strict=True)]) for scores in found]
        over = np.max if self.config.model.dtype == "float32" else np.mean
        return float(np.max([over(gap) for gap in gaps]))
