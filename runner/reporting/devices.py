"""The GPUs of this node, as their driver tells of them (NVML)."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class Device:
    """One GPU. What a card does not tell is None."""

    index: int
    uuid: str
    name: str
    utilisation: float | None
    """Share of the driver's last sampling period in which a kernel ran, in percent."""
    memory_used: int | None
    memory_total: int | None
    """Bytes, of all processes."""
    temperature: float | None
    """Of the chip, in °C."""
    power: float | None
    """Watt."""
    memory_errors: int | None
    """Uncorrected ones (ECC) since the driver was loaded."""


class Devices:
    """Reads GPUs for as long as it lives; there are none where there is no NVIDIA driver."""

    def __init__(self):
        self._ready = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._ready = True

    def read(self, ids: Iterable[str] | None = None) -> list[Device]:
        """The GPUs named by index or UUID, as Ray and CUDA_VISIBLE_DEVICES name them; all of the node without `ids`."""
        if not self._ready:
            return []
        named = range(pynvml.nvmlDeviceGetCount()) if ids is None else sorted(set(ids))
        return [device for device in map(_read, named) if device]


def _read(name: int | str) -> Device | None:
    """None when the driver knows no such GPU, as with a slice of one (MIG) that its name does not find."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if str(name).isdigit() else pynvml.nvmlDeviceGetHandleByUUID(str(name))
    except pynvml.NVMLError:
        return None
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    utilisation = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _told(pynvml.nvmlDeviceGetPowerUsage, handle)
    errors = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    return Device(
        index=pynvml.nvmlDeviceGetIndex(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        utilisation=None if utilisation is None else float(utilisation.gpu),
        memory_used=memory and memory.used,
        memory_total=memory and memory.total,
        temperature=_told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power=None if power is None else power / 1000,
        memory_errors=_told(pynvml.nvmlDeviceGetTotalEccErrors, handle, *errors),
    )


def _told(ask: Callable, *arguments: Any) -> Any:
    """What the driver answers; None to what this card does not offer."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None
