import asyncio
import multiprocessing
import os
import signal

import pytest

from runner.sandbox.locks import Gate, LiveEpisodes, locked, try_lock


async def test_a_gate_lets_only_its_slots_in(tmp_path):
    gate, other = Gate(tmp_path, 2), Gate(tmp_path, 2)
    first, second = await gate.enter(0), await other.enter(0)
    with pytest.raises(TimeoutError):
        await gate.enter(0.1)
    first.release()
    third = await other.enter(1)
    second.release()
    third.release()


def _hold(folder, ready):
    live = LiveEpisodes(folder / "live").hold("theirs")
    slot = try_lock(folder / "slots" / "slot-0")
    ready.set()
    signal.pause()
    del live, slot


async def test_a_process_that_was_killed_gives_back_its_slot_and_its_episodes(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready))
    process.start()
    assert await asyncio.to_thread(ready.wait, 30)
    live, gate = LiveEpisodes(tmp_path / "live"), Gate(tmp_path / "slots", 1)
    assert live.alive("theirs")
    with pytest.raises(TimeoutError):
        await gate.enter(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not live.alive("theirs")
    (await gate.enter(1)).release()


def test_an_episode_lives_once(tmp_path):
    live = LiveEpisodes(tmp_path)
    held = live.hold("a/b")
    assert live.alive("a/b") and not live.alive("c")
    with pytest.raises(ValueError, match="a/b"):
        live.hold("a/b")
    held.release(remove=True)
    assert not live.alive("a/b") and list(tmp_path.iterdir()) == []


async def test_one_builder_at_a_time(tmp_path):
    inside, most = 0, 0

    async def build():
        nonlocal inside, most
        async with locked(tmp_path / "tag", 10):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(build() for _ in range(5)))
    assert most == 1
    with pytest.raises(TimeoutError):
        async with locked(tmp_path / "tag", 1), locked(tmp_path / "tag", 0.1):
            pass


def test_a_gate_without_slots_is_refused(tmp_path):
    with pytest.raises(ValueError, match="slots"):
        Gate(tmp_path, 0)


def test_any_episode_is_asked_for_without_a_name(tmp_path):
    living = LiveEpisodes(tmp_path / "live")
    assert not living.alive("")
    held = living.hold("a/b")
    assert living.alive("") and living.alive("a/b")
    held.release(remove=True)
    assert not living.alive("")
