"""Which tasks a policy's weights have learned from, over every run they came through: what may no longer count as held out."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DRIVER_FILE = "driver.json"


class Lineage:
    """Tasks as `<environment>/<key>`, because a simulator's variations are the same whichever bank names them."""

    def __init__(self, environment: str, inherited: Iterable[str] = ()):
        self.environment = environment
        self._tasks = set(inherited)

    @classmethod
    def after(cls, environment: str, checkpoint: Path | None) -> "Lineage":
        """That of a run whose model is `checkpoint`, or a model from elsewhere, of which nothing is known."""
        return cls(environment, inherited(checkpoint) if checkpoint else ())

    @property
    def tasks(self) -> list[str]:
        """In order, as a checkpoint keeps them."""
        return sorted(self._tasks)

    def learned(self, keys: Iterable[str]) -> None:
        """The weights have moved by episodes or demonstrations of these tasks of the run's bank."""
        self._tasks |= {f"{self.environment}/{key}" for key in keys if key}

    def resumed(self, tasks: Iterable[str]) -> None:
        """Take over what a checkpoint of this run kept."""
        self._tasks = set(tasks)

    def overlap(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys`, tasks of the run's bank, that were learned from."""
        return [key for key in keys if f"{self.environment}/{key}" in self._tasks]


def inherited(checkpoint: Path) -> list[str]:
    """What the checkpoint folder says of its own lineage; nothing where it was written before that was kept."""
    try:
        told: dict[str, Any] = json.loads((checkpoint / DRIVER_FILE).read_text())
    except FileNotFoundError:
        return []
    return told.get("trained_on", [])
