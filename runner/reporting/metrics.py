"""Metrics of a step that only the driver knows: where its seconds went, how fast it was, what had to be replaced.

Rewards, lengths, terminations, groups and health come with the learner's report (runner.learning.health), under the names and
populations of the metrics dictionary.
"""

import time
from contextlib import contextmanager
from typing import Iterator, Sequence

import numpy as np

from runner.contract.metrics import EFFECTIVE, is_tracked
from runner.contract.termination import Termination
from runner.rollouts.episodes import Outcome

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


# Which phases of a container episode make up each series.
_PHASES = {"env_setup_s": ("env_setup", "healthcheck"), "agent_s": ("agent_execution",), "verifier_s": ("verifier", "parse_reward", "regrade")}


def container_metrics(outcomes: Sequence[Outcome]) -> Metrics:
    """Where the seconds of container episodes went and what became of their deliveries; empty when none ran in a container."""
    inside = [outcome for outcome in outcomes if outcome.facts.get("phases")]
    if not inside:
        return {}
    metrics: Metrics = {}
    for name, phases in _PHASES.items():
        passed = [took for outcome in inside if (took := outcome.facts["phases"]).keys() & set(phases)]
        if seconds := [sum(took.get(phase, 0.0) for phase in phases) for took in passed]:
            metrics |= {f"episode/{name}/p{rank}": float(np.percentile(seconds, rank)) for rank in (50, 95)}
    count, turns = len(inside), sum(outcome.sample.turns for outcome in inside)
    if turns:
        metrics["episode/tokens_per_turn"] = sum(outcome.sample.response_length for outcome in inside) / turns
    for name, key in (("delivered", "delivered"), ("regraded", "regraded"), ("fetched", "fetches")):
        metrics[f"episode/{name}_fraction"] = sum(bool(outcome.facts.get(key)) for outcome in inside) / count
    metrics["verifier/timeout_fraction"] = sum(outcome.termination is Termination.VERIFIER_TIMEOUT for outcome in inside) / count
    metrics["queue/wait_s"] = float(np.mean([outcome.facts["phases"].get("admit", 0.0) for outcome in inside]))
    metrics["episode/forked_fraction"] = sum(bool(outcome.facts.get("forks")) for outcome in inside) / count
    return metrics


def tracked(metrics: Metrics) -> Metrics:
    """What a checkpoint is remembered by."""
    return {name: value for name, value in metrics.items() if is_tracked(name) or name == EFFECTIVE}


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
