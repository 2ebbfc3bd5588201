import time

import pytest

from runner.reporting.batches import read_batches
from runner.reporting.control import ClaimRefused, Control, Fenced, Unreachable
from runner.reporting.devices import Device
from runner.reporting.emitter import Emitter
from runner.reporting.heartbeat import Component, Heartbeat, StopRequest, Vitals
from tests.runner.fake_control import ControlPlane


@pytest.fixture
def plane():
    plane = ControlPlane()
    yield plane
    plane.close()


@pytest.fixture
def claimed(plane):
    plane.answers["claim"] = (200, {"token": "assay_t"})
    control = Control(plane.url, "7")
    control.claim("code")
    return control


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_claim_names_the_process_and_its_token_is_used_from_then_on(plane, claimed):
    (body,) = plane.bodies("claim")
    assert body["code"] == "code" and body["pid"] and body["started"] > 1e9 and body["host"]
    claimed.heartbeat({})
    assert plane.seen[-1][2] == "Bearer assay_t"


@pytest.mark.parametrize("status", [403, 409, 410])
def test_a_refused_claim_is_final(plane, status):
    plane.answers["claim"] = (status, {"title": "Claimed already", "detail": "by another"})
    with pytest.raises(ClaimRefused, match=f"{status}.*by another"):
        Control(plane.url, "7").claim("code")
    assert len(plane.seen) == 1


def test_a_claim_waits_for_a_control_plane_that_is_starting(plane):
    plane.answers["claim"] = lambda number: (503, {}) if number < 3 else (200, {"token": "t"})
    assert Control(plane.url, "7").claim("code") == {"token": "t"}


def test_an_unreachable_control_plane_is_given_up(monkeypatch):
    monkeypatch.setattr("runner.reporting.control.TRY_SECONDS", 1.0)
    with pytest.raises(Unreachable):
        Control("http://127.0.0.1:9", "7").claim("code")


def test_writes_are_sent_in_order_and_again_until_taken(plane, claimed):
    plane.answers["state"] = lambda number: (503, {}) if number < 3 else (200, {})
    claimed.state("running", "training", 1)
    claimed.checkpoint(checkpoint="c", state="writing")
    claimed.exit({"outcome": "succeeded"})
    assert claimed.flush(10)
    assert [name for name, *_ in plane.seen if name != "claim"] == ["state", "state", "state", "checkpoints", "exit"]


def test_a_refused_write_does_not_hold_up_the_next(plane, claimed, capsys):
    plane.answers["checkpoints"] = (400, {"title": "Bad", "detail": "no"})
    claimed.checkpoint(checkpoint="c")
    claimed.exit({})
    assert claimed.flush(5) and plane.bodies("exit") and "no" in capsys.readouterr().err


@pytest.mark.parametrize("status", [409, 410])
def test_a_fenced_heartbeat_says_so(plane, claimed, status):
    plane.answers["heartbeat"] = (status, {"title": "Attempt closed", "detail": "exit"})
    with pytest.raises(Fenced, match="exit"):
        claimed.heartbeat({})
    assert claimed.fenced.is_set()


def test_the_bank_is_fetched_once_and_then_read_from_the_cache(plane, claimed, tmp_path):
    plane.answers["bank"] = (200, b"bytes")
    assert claimed.bank("d" * 64, tmp_path) == b"bytes" == claimed.bank("d" * 64, tmp_path)
    assert len(plane.bodies("bank")) == 1 and not list(tmp_path.glob("**/*.tmp*"))


# ---------------------------------------------------------------- heartbeat
@pytest.fixture
def beating(claimed, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.reporting.heartbeat.BEAT_SECONDS", 0.1)
    monkeypatch.setattr("runner.reporting.heartbeat.SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr("runner.reporting.heartbeat.NUDGE_SECONDS", 0.0)
    fenced = []
    vitals, stop = Vitals(components={"driver": Component.own()}), StopRequest()
    heartbeat = Heartbeat(claimed, vitals, stop, Emitter(tmp_path / "spool", "driver"), fenced.append)
    yield vitals, stop, heartbeat, fenced
    heartbeat.close()


def test_beats_tell_each_process_with_its_start_time_and_memory(plane, beating):
    vitals, *_ = beating
    vitals.step, vitals.phase = 4, "stage 0: sft"
    vitals.components["worker-9"] = Component(999_999_999, 1.0, "elsewhere", "running")
    wait_until(lambda: plane.bodies("heartbeat") and "worker-9" in plane.bodies("heartbeat")[-1]["components"])
    body = plane.bodies("heartbeat")[-1]
    own = body["components"]["driver"]
    assert (body["step"], body["phase"]) == (4, "stage 0: sft")
    assert own["pid"] and own["started"] > 1e9 and own["rss"] > 1 << 20
    assert body["components"]["worker-9"]["rss"] is None


def test_beats_tell_of_the_gpus_of_processes_on_this_node_only(plane, beating, monkeypatch):
    vitals, _, heartbeat, _ = beating
    told = Device(1, "GPU-1", "H", 87.0, 3, 141, 61.0, 412.5, None)
    monkeypatch.setattr(heartbeat._gpus, "read", lambda ids: [told] if list(ids) == ["1"] else [])
    vitals.components["learner"] = Component(1, 1.0, vitals.components["driver"].host, "running", gpus=("1",))
    vitals.components["worker-9"] = Component(2, 1.0, "elsewhere", "running", gpus=("0",))
    wait_until(lambda: plane.bodies("heartbeat") and plane.bodies("heartbeat")[-1]["devices"])
    [device] = plane.bodies("heartbeat")[-1]["devices"]
    assert device["host"] == vitals.components["driver"].host and (device["index"], device["power"]) == (1, 412.5)
    heartbeat.close()
    heartbeat.emitter.close()
    names = {name for batch in read_batches(heartbeat.emitter.folder.parent) for name in batch.samples.names}
    assert {f"gpu/1 {device['host']}/{name}" for name in ("utilisation", "memory", "temperature", "power")} <= names
    assert f"gpu/1 {device['host']}/memory_errors" not in names, "what is not told is no zero"


def test_a_stop_command_is_heard_with_its_grace(plane, beating):
    _, stop, *_ = beating
    assert not stop.asked and stop.seconds_left == float("inf")
    plane.answers["heartbeat"] = (200, {"command": "stop", "grace_s": 30})
    wait_until(lambda: stop.asked)
    assert 25 < stop.seconds_left <= 30


def test_a_later_request_may_shorten_the_grace_and_never_lengthen_it():
    stop = StopRequest()
    stop.ask("stop requested", 30)
    stop.ask("terminated", 10)
    stop.ask("again", None)
    assert stop.seconds_left <= 10 and stop.reason == "stop requested"


def test_fencing_is_told_once_and_ends_the_beats(plane, beating):
    *_, fenced = beating
    plane.answers["heartbeat"] = (409, {"detail": "superseded"})
    wait_until(lambda: fenced)
    count = len(plane.bodies("heartbeat"))
    time.sleep(0.4)
    assert len(fenced) == 1 and len(plane.bodies("heartbeat")) == count


def test_an_outage_does_not_end_the_beats(plane, beating):
    plane.answers["heartbeat"] = lambda number: (503, {}) if number < 4 else (200, {"command": "stop", "grace_s": 1})
    _, stop, *_ = beating
    wait_until(lambda: stop.asked)
