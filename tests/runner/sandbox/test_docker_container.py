"""The Docker backend against a real engine."""

import asyncio
import time

import pytest
from docker.errors import APIError

from runner.sandbox.base import ArchiveLimits, ContainerSpec, Limits, Mount, Network
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.reasons import Reason, SandboxFailure

pytestmark = pytest.mark.docker
SMALL = Limits(cpus=1, memory_mb=64, disk_mb=8192, pids=32)


@pytest.fixture
async def box(node, scratch_image):
    container = await node.backend.create(ContainerSpec(scratch_image, SMALL, folders=("/logs/artifacts",)))
    yield container
    await container.remove()


async def sh(box, script, timeout=20, **options):
    return await box.exec(["sh", "-c", script], timeout=timeout, **options)


async def test_a_command_gives_its_code_and_both_streams(box):
    result = await sh(box, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (await sh(box, "echo $NAME; pwd", env={"NAME": "x y"}, workdir="/tmp")).stdout == b"x y\n/tmp\n"
    assert (await sh(box, "id -u", user="65534")).stdout == b"65534\n"


async def test_a_command_that_does_not_exist_is_a_value(box):
    assert (await box.exec(["no-such-thing"], timeout=10)).exit_code in (126, 127)


async def test_a_command_is_cut_off_at_its_time(box):
    started = time.monotonic()
    result = await sh(box, "echo begun; sleep 60", timeout=4)
    assert result.timed_out and result.exit_code is None and result.stdout == b"begun\n"
    assert time.monotonic() - started < 30


async def test_a_flood_is_cut_off_and_only_its_ends_are_kept(box):
    result = await sh(box, "echo first; yes; echo never", output_cap=1000, flood_limit=4 << 20)
    assert result.flooded and result.exit_code is None and result.truncated
    assert result.stdout.startswith(b"first\n") and len(result.stdout) < 1100
    assert 4 << 20 < result.printed < 8 << 20


async def test_a_child_in_the_background_does_not_hold_the_command(box):
    result = await sh(box, "(sleep 60) & echo done")
    assert (result.exit_code, result.stdout) == (0, b"done\n") and result.seconds < 15


async def test_cancelling_ends_the_wait(box):
    waiting = asyncio.create_task(sh(box, "sleep 60", timeout=60))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - started < 10


async def test_nothing_is_privileged(box):
    status = (await sh(box, "cat /proc/self/status")).output
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    assert (await sh(box, "ls /sys/class/net")).stdout.split() == [b"lo"]
    assert (await sh(box, "ls /var/run/docker.sock /run/docker.sock")).exit_code != 0
    assert (await sh(box, "chown 65534 /app")).exit_code != 0


async def test_the_grader_may_give_up_its_rights(node, scratch_image):
    box = await node.backend.create(ContainerSpec(scratch_image, SMALL, capabilities=("SETUID", "SETGID", "KILL")))
    assert "CapEff:\t00000000000000e0" in (await sh(box, "cat /proc/self/status")).output
    await box.remove()


async def test_processes_are_limited(box):
    result = await sh(box, "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done", timeout=15)
    assert "fork" in result.output.lower()


async def test_memory_is_limited_and_said(box):
    result = await sh(box, "tail /dev/zero")
    assert result.exit_code == 137
    assert await box.out_of_memory()
    assert (await box.stats()).running


async def test_memory_that_sufficed_is_not_blamed(box):
    await sh(box, "kill -9 $$")
    assert not await box.out_of_memory()


async def test_cpu_is_limited(node, scratch_image):
    box = await node.backend.create(ContainerSpec(scratch_image, Limits(cpus=0.25, memory_mb=64)))
    before = (await box.stats()).cpu_seconds
    await sh(box, "timeout 2 sh -c 'while :; do :; done'")
    used = (await box.stats()).cpu_seconds - before
    await box.remove()
    assert used < 1.2, f"{used} CPU seconds in 2 s at a quarter CPU"


async def test_a_file_over_the_disk_limit_cannot_be_written(node, scratch_image):
    box = await node.backend.create(ContainerSpec(scratch_image, Limits(memory_mb=64, disk_mb=4)))
    result = await sh(box, "head -c 8000000 /dev/zero > /tmp/big; wc -c < /tmp/big")
    await box.remove()
    assert int(result.stdout.split()[-1]) <= 4 << 20


async def test_many_files_over_the_disk_limit_end_the_container(node, scratch_image, monkeypatch):
    box = await node.backend.create(ContainerSpec(scratch_image, Limits(memory_mb=64, disk_mb=4)))
    fill = "i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero > /tmp/$i; i=$((i+1)); done; sleep 200"
    try:
        with pytest.raises(SandboxFailure) as caught:
            await sh(box, fill, timeout=180)
    finally:
        await box.remove()
    assert caught.value.reason is Reason.DISK_LIMIT_EXCEEDED


async def test_files_go_in_and_come_out(box, tmp_path):
    await box.put("/app/in", {"a/b.txt": b"hello", "run": b"#!/bin/sh\necho ran\n"})
    assert (await box.exec(["/app/in/run"], timeout=10)).stdout == b"ran\n"
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "c").write_text("c")
    await box.put("/app/more", tmp_path / "source")
    assert await box.get("/app", tmp_path / "out") == 5 + 19 + 1
    assert (tmp_path / "out/in/a/b.txt").read_text() == "hello" and (tmp_path / "out/more/deep/c").read_text() == "c"
    assert await box.read("/app/in/a/b.txt", 10) == b"hello"


async def test_a_five_gigabyte_artifact_is_refused_unread(box, tmp_path):
    await sh(box, "truncate -s 5G /logs/artifacts/result.bin")
    started = time.monotonic()
    with pytest.raises(SandboxFailure) as caught:
        await box.get("/logs/artifacts", tmp_path / "out", ArchiveLimits(total_bytes=1 << 30))
    assert caught.value.reason is Reason.ARCHIVE_TOO_LARGE and "result.bin" in str(caught.value)
    assert list(tmp_path.glob("*out*")) == [] and time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("ln -s /etc/passwd /logs/artifacts/answer", Reason.ARCHIVE_UNSAFE_PATH),
        ("rm -r /logs/artifacts; ln -s / /logs/artifacts", Reason.ARCHIVE_UNSAFE_PATH),
        ("i=0; while [ $i -lt 60 ]; do : > /logs/artifacts/$i; i=$((i+1)); done", Reason.ARCHIVE_TOO_MANY_FILES),
        ("rm -r /logs/artifacts", Reason.PATH_MISSING),
    ],
)
async def test_what_cannot_be_taken_out_has_a_name(box, tmp_path, script, reason):
    await sh(box, script)
    with pytest.raises(SandboxFailure) as caught:
        await box.get("/logs/artifacts", tmp_path / "out", ArchiveLimits(entries=50))
    assert caught.value.reason is reason
    assert list(tmp_path.glob("*out*")) == []


async def test_a_frozen_container_gives_its_files_and_goes(box, tmp_path):
    await sh(box, "(while :; do echo x >> /logs/artifacts/log; done) > /dev/null 2>&1 & sleep 0.2")
    await box.freeze()
    size = await box.get("/logs/artifacts", tmp_path / "one")
    assert await box.get("/logs/artifacts", tmp_path / "two") == size


@pytest.mark.parametrize(("told", "times", "asked"), [("unable to freeze", 2, 3), ("unable to freeze", 9, 5), ("is not running", 9, 1)])
async def test_freezing_is_tried_again_where_a_later_try_may_help(box, monkeypatch, told, times, asked):
    real, refused = box.engine.pause, []

    def pause(container):
        if len(refused) < times:
            refused.append(container)
            raise APIError(f"Cannot pause container: OCI runtime pause failed: {told}")
        real(container)

    monkeypatch.setattr(box.engine, "pause", pause)
    if asked > times:
        return await box.freeze()
    with pytest.raises(SandboxFailure, match=told):
        await box.freeze()
    assert len(refused) == asked


async def test_a_restart_ends_every_process_and_keeps_files(box):
    await sh(box, "echo kept > /app/kept; (trap '' TERM; sleep 300) > /dev/null 2>&1 &")
    await box.restart()
    kept, *sleeping = (await sh(box, "cat /app/kept; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout.decode().split("\n", 1)
    assert kept == "kept" and "sleep infinity" in sleeping[0] and "sleep 300" not in sleeping[0]


async def test_a_mount_cannot_be_written(node, scratch_image, tmp_path):
    (tmp_path / "given").write_text("as it was")
    box = await node.backend.create(ContainerSpec(scratch_image, SMALL, mounts=[Mount(tmp_path, "/tests")]))
    assert (await sh(box, "cat /tests/given; echo changed > /tests/given")).exit_code != 0
    assert (tmp_path / "given").read_text() == "as it was"
    await box.remove()


async def test_a_read_only_root_can_be_written_where_it_says(node, scratch_image, tmp_path):
    box = await node.backend.create(ContainerSpec(scratch_image, SMALL, read_only=True, writable=("/logs/verifier",)))
    assert (await sh(box, "echo x > /app/x")).exit_code != 0
    assert (await sh(box, "echo x > /tmp/x && echo y > /logs/verifier/reward.txt")).exit_code == 0
    assert await box.read("/logs/verifier/reward.txt", 10) == b"y\n"
    await box.remove()


async def test_a_public_container_has_a_network_of_its_own_and_takes_it_along(node, scratch_image, house):
    box = await node.backend.create(ContainerSpec(scratch_image, SMALL, network=Network.PUBLIC))
    assert b"eth0" in (await sh(box, "ls /sys/class/net")).stdout
    assert len(await node.backend.attached({})) == 2
    await box.remove()
    assert await node.backend.attached({}) == []


async def test_an_allowlist_is_never_widened(node, scratch_image):
    box = await node.backend.create(ContainerSpec(scratch_image, SMALL, network=Network.ALLOWLIST))
    assert (await sh(box, "ls /sys/class/net")).stdout.split() == [b"lo"]
    await box.remove()


async def test_a_container_that_was_killed_says_so(box):
    await box.kill()
    with pytest.raises(SandboxFailure) as caught:
        await sh(box, "true")
    assert caught.value.reason is Reason.CONTAINER_DIED


async def test_a_container_killed_while_a_command_starts_never_looks_like_the_commands_own_end(node, scratch_image):
    """The engine then says 126 or 137 and prints words of its own; taken for an agent's end, its empty hands would be graded."""
    ended = []
    for moment in range(24):
        box = await node.backend.create(ContainerSpec(scratch_image, SMALL))
        running = asyncio.create_task(sh(box, "echo out"))
        await asyncio.sleep(0.01 * moment)
        await box.kill()
        try:
            ended.append((await running).exit_code)
        except SandboxFailure as error:
            ended.append(error.reason)
        await box.remove()
    assert set(ended) <= {0, Reason.CONTAINER_DIED} and Reason.CONTAINER_DIED in ended, ended


async def test_an_unknown_image_is_named(node):
    with pytest.raises(SandboxFailure, match="no-such-image") as caught:
        await node.backend.create(ContainerSpec("assay/no-such-image:1"))
    assert caught.value.reason is Reason.IMAGE_MISSING


async def test_cancelling_a_creation_leaves_no_container(node, scratch_image):
    for delay in (0.0, 0.02, 0.1):
        creating = asyncio.create_task(node.backend.create(ContainerSpec(scratch_image, SMALL, network=Network.PUBLIC)))
        await asyncio.sleep(delay)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert await node.backend.attached({}) == []


async def test_the_engines_health_is_measured(node):
    health = await node.health()
    assert health.reason is None and health.version and health.list_seconds < 20


def test_a_backend_without_a_house_is_refused():
    with pytest.raises(ValueError, match="house"):
        DockerBackend({})
