"""What a worker tells while its episodes run: every turn as it happens, how many episodes are in which phase, the node's engine.

The driver tells the turns again when the episode has ended; a turn is known by (episode, index), so that it counts once.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.contract.episode import EventKind
from runner.reporting.emitter import Emitter
from runner.reporting.replay import read_connection
from runner.rollouts.episodes import EpisodeOrder, Turn
from runner.sandbox.base import Health
from runner.sandbox.results import Phase, PhaseEvent

CLOSE_SECONDS = 5.0


class LiveReporter:
    """One worker's. Tells nothing where the attempt has no control plane, and nothing outside of `telling`."""

    def __init__(self, name: str, attempt: Path):
        """`attempt` is the attempt's folder."""
        self.name, self.attempt = name, attempt
        self._emitter: Emitter | None = None
        self._phases: dict[str, Phase] = {}

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around one job: the emitter's spool is gone when everything was delivered."""
        if connection := read_connection(self.attempt):
            self._emitter = Emitter(self.attempt / "spool", self.name, url=connection.url, token=connection.token)
        try:
            yield
        finally:
            if self._emitter:
                self._emitter.close(CLOSE_SECONDS)
            self._emitter = None

    def turn(self, order: EpisodeOrder, turn: Turn) -> None:
        if self._emitter:
            self._emitter.episode_event(order.episode, EventKind.TURN, turn.index, dict(vars(turn)))

    def phase(self, event: PhaseEvent) -> None:
        """A boundary that an episode passed: the series `sandbox/<phase> <worker>` count episodes over wall seconds."""
        before = self._phases.pop(event.episode, None)
        if not event.finished:
            self._phases[event.episode] = event.phase
        counts = Counter(self._phases.values())
        self.samples({f"sandbox/{phase} {self.name}": float(counts[phase]) for phase in {before, event.phase} - {None}})

    def health(self, node: str, health: Health) -> None:
        """The engine of this node; what it did not tell is left out."""
        found = {"containers": health.containers, "dangling_images": health.dangling_images, "ps_latency_s": health.list_seconds}
        self.samples({f"docker/{name}/{node}": float(value) for name, value in found.items() if value is not None})

    def samples(self, values: dict[str, float]) -> None:
        if self._emitter:
            self._emitter.emit_samples(values)
