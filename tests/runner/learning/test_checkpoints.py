"""A checkpoint is complete or absent, whatever kills the writer and wherever."""

import json
import os
import resource
import signal

import pytest

from runner.learning import checkpoints
from runner.learning.checkpoints import BrokenCheckpoint, Manifest

WEIGHTS, STATE = bytes(range(256)) * 40, b"state" * 500


def manifest(step=3, **changes):
    fields = {"step": step, "stage": 0, "stage_type": "grpo", "policy_version": step, "adapter": False, "config_hash": "c" * 64}
    return Manifest(**fields, topology={"learners": 1}, versions={"torch": "2"}, rng={"seed": 0}, **changes)


def contents(weights=WEIGHTS):
    def fill(folder):
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(weights)
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state.pt").write_bytes(STATE)

    return fill


def in_child(action) -> int:
    """Run `action` in a forked process and return how it ended (negative: by that signal)."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_is_written_verifies(tmp_path):
    path = checkpoints.write(tmp_path, manifest(), contents())
    found = checkpoints.verify(path)
    assert path == tmp_path / "step_3" and found.step == 3
    assert [(entry.path, entry.size) for entry in found.files] == [
        ("model/model.safetensors", len(WEIGHTS)),
        ("trainer/state.pt", len(STATE)),
    ]
    assert checkpoints.list_complete(tmp_path) == [path] and os.listdir(tmp_path) == ["step_3"]


@pytest.mark.parametrize("offset", [0, 1, 100, 2500, 10_239])
def test_a_writer_killed_at_a_byte_leaves_no_checkpoint(tmp_path, offset):
    """The kernel kills the child the moment a file grows past `offset`."""
    earlier = checkpoints.write(tmp_path, manifest(2), contents())

    def write():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (offset, offset))
        checkpoints.write(tmp_path, manifest(3), contents())

    assert in_child(write) == -signal.SIGXFSZ
    assert checkpoints.list_complete(tmp_path) == [earlier]
    assert checkpoints.latest(tmp_path) == earlier
    (leftover,) = checkpoints.sweep(tmp_path)
    assert leftover.startswith("step_3.tmp-") and os.listdir(tmp_path) == ["step_2"]


@pytest.mark.parametrize("call", range(9))
def test_a_writer_killed_between_system_calls_leaves_no_half_checkpoint(tmp_path, call, monkeypatch):
    """Dies at the n-th flush or rename; whatever is named step_N afterwards verifies."""
    earlier = checkpoints.write(tmp_path, manifest(2), contents())

    def write():
        remaining = [call]

        def deadly(original):
            def wrapped(*args, **kwargs):
                if remaining[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                remaining[0] -= 1
                return original(*args, **kwargs)

            return wrapped

        monkeypatch.setattr(checkpoints.os, "fsync", deadly(os.fsync))
        monkeypatch.setattr(checkpoints.os, "rename", deadly(os.rename))
        checkpoints.write(tmp_path, manifest(3), contents())

    ended = in_child(write)
    finished = [path.name for path in checkpoints.list_complete(tmp_path)]
    assert ended in (0, -signal.SIGKILL)
    for name in finished:
        checkpoints.verify(tmp_path / name)
    assert finished == (["step_2"] if call <= 6 else ["step_2", "step_3"])
    assert checkpoints.verify(earlier)


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def fails(folder):
        contents()(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(tmp_path, manifest(), fails)
    assert os.listdir(tmp_path) == []


def test_a_step_written_again_replaces_the_older_one(tmp_path):
    checkpoints.write(tmp_path, manifest(), contents(b"old"))
    path = checkpoints.write(tmp_path, manifest(), contents(b"new"))
    assert (path / "model" / "model.safetensors").read_bytes() == b"new"
    assert checkpoints.verify(path) and os.listdir(tmp_path) == ["step_3"]


def test_a_killed_replacement_gives_the_older_one_back(tmp_path, monkeypatch):
    checkpoints.write(tmp_path, manifest(), contents(b"old"))

    def replace():
        original, calls = os.rename, []

        def second_kills(*args):
            calls.append(args)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        monkeypatch.setattr(checkpoints.os, "rename", second_kills)
        checkpoints.write(tmp_path, manifest(), contents(b"new"))

    assert in_child(replace) == -signal.SIGKILL
    assert checkpoints.list_complete(tmp_path) == []
    checkpoints.sweep(tmp_path)
    assert (tmp_path / "step_3" / "model" / "model.safetensors").read_bytes() == b"old"
    assert checkpoints.verify(tmp_path / "step_3") and os.listdir(tmp_path) == ["step_3"]


def damage_byte(path):
    file = path / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[77] ^= 1
    file.write_bytes(data)


DAMAGE = {
    "a flipped bit": (damage_byte, "content does not match its hash"),
    "a short file": (lambda path: (path / "trainer" / "state.pt").write_bytes(STATE[:-1]), "2499 bytes, the manifest says 2500"),
    "a missing file": (lambda path: (path / "trainer" / "state.pt").unlink(), r"files differ from the manifest: \['trainer/state.pt'\]"),
    "a file too many": (lambda path: (path / "extra").write_bytes(b"x"), r"files differ from the manifest: \['extra'\]"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json: unreadable"),
    "a cut manifest": (lambda path: (path / "manifest.json").write_bytes(b'{"step": 3'), "manifest.json: unreadable"),
    "a manifest of another step": (lambda path: edit(path, step=4), "its manifest is of step 4"),
    "a newer format": (lambda path: edit(path, format=99), "format 99 is newer than 1"),
}


def edit(path, **changes):
    document = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(document | changes))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_one_before_is_used(tmp_path, kind):
    damage, message = DAMAGE[kind]
    earlier = checkpoints.write(tmp_path, manifest(2), contents())
    path = checkpoints.write(tmp_path, manifest(3), contents())
    damage(path)
    with pytest.raises(BrokenCheckpoint, match=message):
        checkpoints.verify(path)
    assert checkpoints.latest(tmp_path) == earlier


def test_an_unfinished_folder_never_verifies(tmp_path):
    path = checkpoints.write(tmp_path, manifest(3), contents())
    unfinished = path.rename(tmp_path / "step_3.tmp-00ff00ff00ff")
    with pytest.raises(BrokenCheckpoint, match="its write never finished"):
        checkpoints.verify(unfinished)


def test_checkpoints_are_ordered_by_step_not_by_name(tmp_path):
    for step in (10, 9, 100):
        checkpoints.write(tmp_path, manifest(step), contents(b"x"))
    assert [path.name for path in checkpoints.list_complete(tmp_path)] == ["step_9", "step_10", "step_100"]
    assert checkpoints.latest(tmp_path).name == "step_100"


def test_nothing_is_the_latest_of_an_empty_folder(tmp_path):
    assert checkpoints.latest(tmp_path) is None and checkpoints.sweep(tmp_path) == []


def test_a_sweep_touches_only_leftovers(tmp_path):
    checkpoints.write(tmp_path, manifest(3), contents(b"x"))
    for name in ("step_3.notes", "other.tmp-00ff", "step_4.tmp-00ff00ff00ff"):
        (tmp_path / name).mkdir()
    assert checkpoints.sweep(tmp_path) == ["step_4.tmp-00ff00ff00ff"]
    assert sorted(os.listdir(tmp_path)) == ["other.tmp-00ff", "step_3", "step_3.notes"]


def test_a_removed_checkpoint_is_gone(tmp_path):
    checkpoints.remove(checkpoints.write(tmp_path, manifest(3), contents(b"x")))
    assert os.listdir(tmp_path) == []


def test_equal_content_has_equal_revisions(tmp_path):
    first = checkpoints.verify(checkpoints.write(tmp_path / "a", manifest(), contents()))
    second = checkpoints.verify(checkpoints.write(tmp_path / "b", manifest(), contents()))
    other = checkpoints.verify(checkpoints.write(tmp_path / "c", manifest(), contents(b"other")))
    assert first.revision == second.revision != other.revision
