"""The last word of an attempt: a file written atomically beside the run's data, and sent; either is enough."""

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from runner.assignment import Refused


def exit_record(outcome: str, step: int, reason: str = "", error: BaseException | None = None) -> dict[str, Any]:
    """`outcome` is succeeded, failed, stopped, or lost when a process of the run was; `begun` is when this process, the driver, was started."""
    told = {"outcome": outcome, "reason": reason, "step": step, "error": _describe(error) if error else None}
    return {**told, "begun": psutil.Process().create_time(), "at": time.time()}


def _describe(error: BaseException) -> dict[str, Any]:
    described = {"type": type(error).__name__, "message": str(error), "traceback": "".join(traceback.format_exception(error))[-20_000:]}
    if isinstance(error, Refused):
        described |= {"pointer": error.pointer, "value": error.value}
    return described


def write_exit_record(folder: Path, record: dict[str, Any]) -> None:
    """Replace `folder/exit.json` in one rename, on the disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"exit.json.{os.getpid()}"
    with open(temporary, "w") as file:
        json.dump(record, file, default=str)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / "exit.json")
