"""GPUs as the driver tells of them; here a driver that knows two cards and refuses what a test asks it to refuse."""

from types import SimpleNamespace

import pynvml
import pytest

from runner.reporting.devices import Devices


class Driver:
    """Stands for NVML, whose failures no machine brings about when asked."""

    def __init__(self, monkeypatch):
        self.refused: set[str] = set()
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": self.by_index,
            "nvmlDeviceGetHandleByUUID": self.by_uuid,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: "H",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3 << 30, total=141 << 30),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=40),
            "nvmlDeviceGetPowerUsage": lambda handle: 412_500,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self.refusing(name, answer))

    def refusing(self, name, answer):
        def asked(*arguments):
            if name in self.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(*arguments)

        return asked

    def by_index(self, index):
        if index > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def by_uuid(self, uuid):
        return self.by_index(int(uuid.removeprefix("GPU-")))


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


def test_units_are_percent_bytes_degrees_and_watts(driver):
    first, second = Devices().read()
    assert (first.index, second.index, first.uuid) == (0, 1, "GPU-0")
    assert (first.utilisation, first.memory_used, first.memory_total) == (87.0, 3 << 30, 141 << 30)
    assert (first.temperature, first.power, first.memory_errors) == (61, 412.5, 0)


def test_a_run_sees_the_gpus_it_was_given_each_once_however_they_are_named(driver):
    assert [device.index for device in Devices().read(["1", "1"])] == [1]
    assert [device.index for device in Devices().read(["GPU-1"])] == [1]
    assert Devices().read([]) == [] == Devices().read(["7"])


def test_what_a_card_does_not_offer_is_none_and_the_rest_is_told(driver):
    driver.refused = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEccErrors"}
    [device] = Devices().read(["0"])
    assert (device.utilisation, device.power, device.memory_errors) == (None, None, None)
    assert device.temperature == 61


def test_a_machine_without_a_driver_has_none(driver):
    driver.refused = {"nvmlInit"}
    assert Devices().read() == [] == Devices().read(["0"])
