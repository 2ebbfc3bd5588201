"""Metrics of a step that only the driver knows: where its seconds went, how fast it was, what had to be replaced.

Rewards, lengths, terminations, groups and health come with the learner's report (runner.learning.health), under the names and
populations of the metrics dictionary.
"""

import time
from contextlib import contextmanager
from typing import Iterator

from runner.contract.metrics import TRACKED

Metrics = dict[str, float]


class Clock:
    """Wall seconds by phase, under `timing_s/<phase>`."""

    def __init__(self):
        self.seconds: Metrics = {}
        self._begin = time.perf_counter()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begin)

    def add(self, phase: str, seconds: float) -> None:
        name = f"timing_s/{phase}"
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def stop(self) -> Metrics:
        """All phases, and `timing_s/step` since the clock was made."""
        return {**self.seconds, "timing_s/step": time.perf_counter() - self._begin}


def throughput(metrics: Metrics, devices: int) -> Metrics:
    """`perf/throughput`: tokens of the step over its seconds and devices; absent when no token is known."""
    tokens, seconds = metrics.get("perf/total_num_tokens", metrics.get("sft/tokens")), metrics.get("timing_s/step")
    return {"perf/throughput": tokens / (seconds * max(devices, 1))} if tokens and seconds else {}


def tracked(metrics: Metrics) -> Metrics:
    """What a checkpoint is remembered by."""
    return {name: metrics[name] for name in TRACKED if name in metrics}


_SPOKEN = (
    ("sft/loss", "loss {:.4f}"),
    ("critic/score/mean", "reward {:.4f}"),
    ("critic/score/n", "of {:.0f}"),
    ("response_length/mean", "length {:.1f}"),
    ("actor/entropy", "entropy {:.3f}"),
    ("rollout_corr/kl", "kl {:.2e}"),
    ("actor/grad_norm", "grad norm {:.3f}"),
    ("timing_s/step", "{:.2f} s"),
)


def in_words(metrics: Metrics) -> str:
    """The log line of a step."""
    return " · ".join(form.format(metrics[name]) for name, form in _SPOKEN if name in metrics)
