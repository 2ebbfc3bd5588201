"""However the front process or the warden dies, no process of the house is left. Every process here is real."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from controlplane.env import CHECKOUT
from controlplane.services import processes
from controlplane.services.front import Front, leftovers, read_state, sweep
from controlplane.services.house import House, HouseError

from .front_process import service


class Running:
    """A house with a polite and a stubborn service: four processes below the warden, one of them orphaned on purpose."""

    def __init__(self, folder: Path):
        self.token = uuid.uuid4().hex
        self.house = House(home=folder / "home", data=folder / "home" / "data", runtime=folder / "run")
        self.front = self.spawn()

    def spawn(self) -> subprocess.Popen:
        script = Path(__file__).with_name("front_process.py")
        arguments = [str(self.house.home), str(self.house.runtime), self.token]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        return subprocess.Popen([sys.executable, str(script), *arguments], env=environment, start_new_session=True)

    def survivors(self) -> list[processes.Process]:
        return [p for p in processes.every_process() if processes.environment(p.pid).get("TOKEN") == self.token]

    def state(self) -> dict:
        return eventually(lambda: (s := read_state(self.house)) and len(s["services"]) == 2 and s)

    def warden(self) -> processes.Process:
        return processes.Process(*self.state()["warden"])


def eventually(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not reached within {seconds} s")


@pytest.fixture
def folder():
    path = Path(f"/tmp/assay-w-{uuid.uuid4().hex[:8]}")
    path.mkdir(mode=0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def running(folder):
    house = Running(folder)
    house.state()
    eventually(lambda: len(house.survivors()) >= 4)
    warden = house.warden()
    yield house
    if house.front.poll() is None:
        house.front.kill()
        house.front.wait()
    for process in house.survivors():
        processes.send(process, signal.SIGKILL)
    # Its last act is to remove a file of the folder that is removed next.
    eventually(lambda: not processes.alive(warden), 60.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_front_process_ends_everything(running, number):
    warden = running.warden()
    running.front.send_signal(number)
    running.front.wait(15)
    eventually(lambda: not running.survivors() and not processes.alive(warden))
    assert not running.house.state_file.exists()


def test_term_to_the_warden_ends_everything(running):
    processes.send(running.warden(), signal.SIGTERM)
    assert running.front.wait(15) == 0
    assert running.survivors() == []


def test_killed_warden_leaves_nothing_while_the_front_lives(running):
    processes.send(running.warden(), signal.SIGKILL)
    running.front.wait(15)
    assert running.survivors() == []


def kill_both(running) -> None:
    """The worst case: nobody is left to clean up."""
    warden = running.warden()
    os.kill(running.front.pid, signal.SIGSTOP)  # it must not act between the two kills
    processes.send(warden, signal.SIGKILL)
    running.front.kill()
    running.front.wait()
    eventually(lambda: not processes.alive(warden))


def test_after_a_double_kill_the_sweep_finds_what_is_left(running):
    polite = processes.Process(*(running.state()["services"]["polite"][key] for key in ("pid", "started")))
    kill_both(running)
    eventually(lambda: not processes.alive(polite), seconds=2)  # the kernel told it
    assert running.survivors(), "the stubborn service and its orphan ignore that"
    sweep(running.house)
    assert running.survivors() == []


def test_after_a_double_kill_the_next_up_sweeps(running):
    kill_both(running)
    old = running.survivors()
    running.front = running.spawn()
    running.state()
    assert not [process for process in old if processes.alive(process)]


def test_sweep_spares_a_process_that_got_a_recorded_pid(running):
    kill_both(running)
    sweep(running.house)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        running.house.state_file.write_text(json.dumps({"services": {"polite": {"pid": stranger.pid, "started": 1}}}))
        assert leftovers(running.house) == []
        sweep(running.house)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_crashed_service_is_started_again_and_its_orphans_ended(running):
    before = running.state()["services"]["stubborn"]
    old = running.survivors()
    os.kill(before["pid"], signal.SIGKILL)
    after = eventually(lambda: (s := running.state()["services"]["stubborn"]) and s["restarts"] == 1 and s["pid"] and s)
    assert after["pid"] != before["pid"] and after["last_exit"] == -signal.SIGKILL
    polite = running.state()["services"]["polite"]["pid"]
    assert [process.pid for process in old if processes.alive(process)] == [polite]
    assert "starting again in" in running.house.log("stubborn").read_text()


def test_restarts_slow_down(folder):
    house = House(home=folder / "home", data=folder / "data", runtime=folder / "run")
    with Front(house) as front:
        front.start(service(house, "broken", "exit 7", "none"))
        front.start({**service(house, "absent", "", "none"), "argv": ["/no/such/program"]})
        time.sleep(2.2)
        services = read_state(house)["services"]
    assert {name: s["last_exit"] for name, s in services.items()} == {"broken": 7, "absent": 127}
    assert all(s["restarts"] == 2 for s in services.values()), "1 s, then 2 s"


def test_a_service_that_keeps_ending_is_reported_with_its_log(folder):
    from controlplane.services.house import NotReady

    def never():
        raise NotReady("nobody listens")

    house = House(home=folder / "home", data=folder / "data", runtime=folder / "run")
    with Front(house) as front:
        front.start(service(house, "broken", "echo the real reason; exit 7", "none"))
        with pytest.raises(HouseError, match="(?s)nobody listens.*the real reason"):
            front.wait_for("broken", never, seconds=5)


def test_a_second_front_is_refused(running):
    with pytest.raises(HouseError, match="assay down"):
        with Front(running.house):
            pass
    assert running.survivors()
