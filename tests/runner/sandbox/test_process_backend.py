"""Sandboxes without an engine: real namespaces and real processes of this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from runner.contract.termination import Termination
from runner.sandbox.__main__ import main
from runner.sandbox.base import ArchiveLimits, ContainerSpec, Limits, Mount
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.images import tag_of
from runner.sandbox.labels import EPISODE, HOUSE
from runner.sandbox.node import Node
from runner.sandbox.process_backend import ProcessBackend
from runner.sandbox.reasons import Reason, SandboxFailure
from tests.runner.sandbox.tasks import Nop, Shell, rewards, write_task

SMALL = Limits(memory_mb=512, disk_mb=64, pids=64)
PREPARE = "#!/bin/sh\nmkdir -p /app\ncp -r . /app/from\n"


def why_not() -> str | None:
    """Some machines forbid what a sandbox of processes needs."""
    tried = subprocess.run(["unshare", "-Urmpn", "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
async def node(house, tmp_path):
    async with Node(ProcessBackend({HOUSE: house}, tmp_path / "sandboxes"), tmp_path / "node", name="here", slots=4) as node:
        yield node
        left = await node.backend.attached({})
    assert left == [] and not (tmp_path / "sandboxes" / "boxes").exists()


@pytest.fixture
async def box(node):
    container = await node.backend.create(ContainerSpec("", SMALL, folders=("/logs/artifacts",)))
    yield container
    await container.remove()


async def sh(box, script, timeout=30, **options):
    return await box.exec(["sh", "-c", script], timeout=timeout, **options)


async def test_a_command_gives_its_code_and_both_streams(box):
    result = await sh(box, "echo out; echo err >&2; exit 3", env={"A": "b"})
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (await box.exec(["no-such-thing"], timeout=10)).exit_code == 127
    assert (await sh(box, "kill -9 $$")).exit_code == 137


async def test_time_and_output_are_limited(box):
    assert (await sh(box, "echo begun; sleep 60", timeout=1)).timed_out
    result = await sh(box, "yes", output_cap=1000, flood_limit=1 << 20)
    assert result.flooded and len(result.stdout) < 1100 and result.exit_code is None


async def test_the_host_is_out_of_reach(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    seen = await sh(
        box, f"cat {secret}; cat /etc/shadow; ls /work /home /sys; echo x > /usr/bin/x; kill -0 {os.getpid()}; ls /sys/class/net"
    )
    assert seen.stdout == b"" and seen.stderr.count(b"\n") >= 7
    status = (await sh(box, "cat /proc/self/status")).output
    assert "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    assert (await sh(box, "grep -c : /proc/net/dev; grep -c lo: /proc/net/dev")).stdout.split() == [b"1", b"1"]
    assert str(tmp_path) not in (await sh(box, "cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' ' '")).output.replace(
        str(secret), ""
    )


async def test_limits_hold(box):
    assert (await sh(box, "head -c 200000000 /dev/zero > /app/big; wc -c < /app/big; rm /app/big")).stdout.split() == [b"67108864"]
    assert "fork" in (await sh(box, "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done")).output.lower()
    assert (await sh(box, "tail /dev/zero", timeout=60)).exit_code != 0


async def test_many_processes_may_not_use_more_memory_together(node):
    box = await node.backend.create(ContainerSpec("", Limits(memory_mb=100, disk_mb=64, pids=64)))
    hog = "head -c 40000000 /dev/zero | tail -c 39000000 | sleep 30"
    with pytest.raises(SandboxFailure) as caught:
        await sh(box, f"for i in 1 2 3 4; do ({hog}) & done; wait", timeout=60)
    assert caught.value.reason is Reason.OUT_OF_MEMORY and await box.out_of_memory()
    await box.remove()


async def test_many_files_may_not_use_more_disk_together(node):
    box = await node.backend.create(ContainerSpec("", Limits(memory_mb=256, disk_mb=4, pids=64)))
    with pytest.raises(SandboxFailure) as caught:
        await sh(box, "i=0; while [ $i -lt 20 ]; do head -c 1000000 /dev/zero > /tmp/$i; i=$((i+1)); done; sleep 60", timeout=60)
    assert caught.value.reason is Reason.DISK_LIMIT_EXCEEDED
    await box.remove()


async def test_files_go_in_and_come_out(box, tmp_path):
    await box.put("/app/in", {"a/b.txt": b"hello", "run": b"#!/bin/sh\necho ran\n"})
    assert (await box.exec(["/app/in/run"], timeout=10)).stdout == b"ran\n"
    assert await box.get("/app/in", tmp_path / "out") == 24
    assert (tmp_path / "out/a/b.txt").read_text() == "hello"
    assert await box.read("/app/in/a/b.txt", 10) == b"hello"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("ln -s /etc/passwd /logs/artifacts/answer", Reason.ARCHIVE_UNSAFE_PATH),
        ("rmdir /logs/artifacts; ln -s / /logs/artifacts", Reason.ARCHIVE_UNSAFE_PATH),
        ("i=0; while [ $i -lt 60 ]; do : > /logs/artifacts/$i; i=$((i+1)); done", Reason.ARCHIVE_TOO_MANY_FILES),
        ("head -c 3000000 /dev/zero > /logs/artifacts/x", Reason.ARCHIVE_TOO_LARGE),
        ("rmdir /logs/artifacts", Reason.PATH_MISSING),
    ],
)
async def test_what_cannot_be_taken_out_has_a_name(box, tmp_path, script, reason):
    await sh(box, script)
    with pytest.raises(SandboxFailure) as caught:
        await box.get("/logs/artifacts", tmp_path / "out", ArchiveLimits(total_bytes=1 << 20, entries=50))
    assert caught.value.reason is reason and list(tmp_path.glob("*out*")) == []


async def test_a_link_out_of_the_sandbox_leads_nowhere(box, tmp_path):
    (tmp_path / "secret").write_text("key")
    await sh(box, f"ln -s {tmp_path}/secret /app/link; rm -r /logs; ln -s {tmp_path} /logs")
    for path in ("/app/link", "/logs/secret"):
        with pytest.raises(SandboxFailure):
            await box.read(path)


async def test_a_mount_cannot_be_written(node, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "x").write_text("as it was")
    box = await node.backend.create(ContainerSpec("", SMALL, mounts=[Mount(tmp_path / "given", "/tests")]))
    assert (await sh(box, "cat /tests/x && echo changed > /tests/x")).stdout == b"as it was"
    assert (tmp_path / "given" / "x").read_text() == "as it was"
    await box.remove()


async def test_removing_ends_every_process_however_it_hid(node):
    box = await node.backend.create(ContainerSpec("", SMALL))
    await sh(box, "(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 4242; done' > /dev/null 2>&1 &) ; sleep 0.3")
    assert hidden()
    await box.remove()
    assert not hidden()


def hidden():
    return [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "4242"]]


VICTIM = """
import asyncio, sys
from runner.sandbox.base import ContainerSpec, Limits
from runner.sandbox.process_backend import ProcessBackend
async def main():
    backend = ProcessBackend({"assay.house": "victim", "assay.episode": "e"}, sys.argv[1])
    await backend.open()
    box = await backend.create(ContainerSpec("", Limits(memory_mb=256)))
    await box.exec(["sh", "-c", "setsid sleep 4243 > /dev/null 2>&1 &"], timeout=20)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def until(condition, what, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.05)


async def test_a_killed_runner_takes_its_sandboxes_along_and_its_folders_are_swept(tmp_path):
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert (await asyncio.to_thread(victim.stdout.readline)) == b"ready\n"
    running = lambda: [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4243"]]  # noqa: E731
    await until(running, "the sandbox's process runs")
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    await until(lambda: not running(), "the sandbox ends with its runner")
    async with Node(ProcessBackend({HOUSE: "victim"}, tmp_path), tmp_path / "node", name="here") as node:
        assert node.swept.containers == 1 and await node.backend.attached({}) == []


@pytest.fixture
def runner(node, tmp_path):
    return EpisodeRunner(node, tmp_path / "jobs", keep_images=False)


def task_of(folder, test=None, **options):
    extra = {"environment/prepare.sh": PREPARE, "tests/prepare.sh": "#!/bin/sh\ntest -f test.sh\n"}
    environment = 'network_mode = "no-network"\nmemory_mb = 512'
    return write_task(folder, *([test] if test else []), environment=environment, verifier="memory_mb = 512", extra=extra, **options)


async def test_an_episode_runs_without_an_engine_and_says_that_it_is_weaker(node, runner, tmp_path):
    task = task_of(tmp_path / "task")
    result = await runner.run(task, Shell("cat /app/from/prepare.sh > /dev/null && echo 42 > /logs/artifacts/answer"), episode="e")
    assert (result.termination, result.score, result.isolation) == (Termination.FINISHED, 1.0, "weak"), result.detail
    assert (await runner.run(task, Nop(), episode="f")).score == 0.0
    assert await node.backend.image(tag_of(task, "agent")) is None and list((tmp_path / "sandboxes" / "images").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\nsleep 60\n", Reason.VERIFIER_TIMEOUT),
        ("#!/bin/sh\nyes\n", Reason.VERIFIER_OUTPUT_FLOOD),
        (rewards('{"reward": NaN}'), Reason.REWARD_NOT_FINITE),
        ("#!/bin/sh\n", Reason.REWARD_MISSING),
    ],
)
async def test_a_bad_verifier_has_the_same_name_as_in_a_container(node, runner, tmp_path, script, reason):
    runner.regrade_once = False
    result = await runner.run(task_of(tmp_path / "task", script, verifier_timeout=3 if "sleep" in script else 120), Shell(), episode="e")
    assert (result.reason, result.score) == (reason, None), result.detail


async def test_a_task_that_cannot_be_prepared_says_why(node, runner, tmp_path):
    task = write_task(tmp_path / "task")
    result = await runner.run(task, Nop(), episode="e")
    assert (result.termination, result.reason) == (Termination.ROLLOUT_ERROR, Reason.BUILD_FAILED)
    assert "prepare.sh" in result.detail and list((tmp_path / "sandboxes" / "images").iterdir()) == []


async def test_the_reaper_takes_what_no_living_episode_owns_and_no_build(node, house, tmp_path):
    await node.backend.create(ContainerSpec("", SMALL, labels={EPISODE: "dead"}))
    build = await node.backend.create(ContainerSpec("", SMALL))
    async with Node(ProcessBackend({HOUSE: house}, node.backend.folder), tmp_path / "node", name="here") as beside:
        assert beside.swept.containers == 0, "what another living process runs is its own to sweep"
    assert (await node.reap()).containers == 1
    assert (await sh(build, "echo here")).stdout == b"here\n"
    await build.remove()


async def test_the_health_of_a_machine_is_that_it_can_start_one(node):
    health = await node.health()
    assert health.reason is None and health.list_seconds > 0


def test_a_node_is_warmed_by_hand(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    task_of(tmp_path / "bank" / "one")
    broken = write_task(tmp_path / "bank" / "two", name="demo/two")
    assert main(["warm", str(tmp_path / "bank"), "--backend", "process", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "demo/answer  warm" in said and f"{broken.name}  cold: build_failed" in said and "1 of 2 tasks warm" in said
    assert main(["warm", str(tmp_path / "out"), "--backend", "process"]) == 1
    assert "compile the bank first" in capsys.readouterr().err


def test_the_health_of_a_node_is_told_by_hand(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["health", "--backend", "process"]) == 0
    assert '"version": "process"' in capsys.readouterr().out and list(tmp_path.iterdir()) == []
