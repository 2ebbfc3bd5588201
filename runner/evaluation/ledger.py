"""results.jsonl of an evaluation: a line a trial, on the disk as soon as it ended; an attempt goes on where the one before it broke off."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.contract.evaluation_results import Record

RESULTS, SUMMARY = "results.jsonl", "summary.json"


class Ledger:
    """The records under `folder`. Those without a score are dropped when it is opened: their trials are run again."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.records = [record for record in read_records(folder / RESULTS) if record["score"] is not None]
        _replace(folder / RESULTS, "".join(_line(record) for record in self.records))
        self._file = open(folder / RESULTS, "a")

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """(task, agent, sample) of what needs not be run again."""
        return {(record["task_name"], record["agent"], record["sample"]) for record in self.records}

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def summarise(self, summary: dict[str, Any]) -> None:
        _replace(self.folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False))

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[Record]:
    """Whole lines of a results.jsonl; the last one of a killed process may be cut."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def ordered(records: Sequence[Record]) -> list[Record]:
    """By task, agent and sample: the order does not tell which container was the faster one."""
    return sorted(records, key=lambda record: (record["task_name"], record["agent"], record["sample"]))


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
