"""What a runner says of its GPUs, as it is kept and shown."""

import math
from typing import Any

from controlplane.telemetry.text import clean_text

MAX_DEVICES = 64
MAX_NAME = 80
NAMES = ("host", "uuid", "name")
NUMBERS = ("utilisation", "memory_used", "memory_total", "temperature", "power", "memory_errors")


class BadDevices(ValueError):
    """The message names the field and its value."""


def read_devices(told: Any) -> list[dict[str, Any]]:
    """At most MAX_DEVICES GPUs (`runner.reporting.devices`), each with all fields; a number that was not told is None. Raises BadDevices."""
    if not isinstance(told, list) or not all(isinstance(device, dict) for device in told):
        raise BadDevices(f"devices: {told!r:.60} is no list of objects")
    return [_device(device) for device in told[:MAX_DEVICES]]


def _device(told: dict) -> dict[str, Any]:
    index = told.get("index")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**15:
        raise BadDevices(f"devices.index: {index!r:.60} is no whole number from 0")
    names = {name: clean_text(str(told.get(name) or ""))[:MAX_NAME] for name in NAMES}
    return {"index": index, **names, **{name: _number(name, told.get(name)) for name in NUMBERS}}


def _number(name: str, value: Any) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value < 2**53:
        raise BadDevices(f"devices.{name}: {value!r:.60} is no number from 0")
    return value
