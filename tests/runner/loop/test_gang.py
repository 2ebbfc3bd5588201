"""A gang without Ray: engines that make room, a learner of several processes, deaths around it."""

import socket
from types import SimpleNamespace

import pytest
import ray

from runner import gang as gangs
from runner import learner_group
from runner.assignment import Bundle
from runner.gang_errors import ProcessLost, head_replaced
from runner.learner_group import LearnerGroup
from runner.rollouts.dispatcher import WorkerLost


@pytest.mark.parametrize("makes_room", [True, False])
def test_engines_that_make_room_sleep_from_the_first_step_learned_to_the_next_push(makes_room):
    said = []
    gang = gangs.Gang.__new__(gangs.Gang)
    gang._makes_room, gang._asleep = makes_room, False
    gang.every_worker, gang.wait = said.append, lambda reference: None
    remote = {name: SimpleNamespace(remote=lambda *_, name=name: said.append(name)) for name in ("learn", "release")}
    gang.learners = LearnerGroup({"learner": SimpleNamespace(**remote)}, lambda references: (references, []))
    gang.wake()
    gang.learn(1)
    gang.learn(2)
    gang.wake()
    gang.wake()
    assert said == (["sleep", "learn", "learn", "release", "wake"] if makes_room else ["learn", "learn"])


def learners_that(monkeypatch, *outcomes):
    """A group whose processes answer with `outcomes`, the last first; those that are exceptions are raised."""

    def get(reference):
        if isinstance(outcomes[reference], Exception):
            raise outcomes[reference]
        return outcomes[reference]

    monkeypatch.setattr(learner_group.ray, "get", get)
    monkeypatch.setattr(learner_group.ray, "wait", lambda references, timeout: (references[-1:], references[:-1]))
    names = ["learner", *(f"learner-{rank}" for rank in range(1, len(outcomes)))]
    return LearnerGroup(dict.fromkeys(names), lambda references: (references[-1:], references[:-1]))


FAILED = ray.exceptions.RayTaskError("learn", "model.max_length: too long", ValueError())


def test_the_first_process_answers_for_all(monkeypatch):
    assert learners_that(monkeypatch, "metrics", None, None).wait([0, 1, 2]) == "metrics"


@pytest.mark.parametrize("outcomes", [("metrics", FAILED), (FAILED, FAILED, FAILED), (FAILED, None)])
def test_what_one_process_raised_is_what_the_learner_raised(monkeypatch, outcomes):
    with pytest.raises(ValueError, match="model.max_length: too long"):
        learners_that(monkeypatch, *outcomes).wait(list(range(len(outcomes))))


@pytest.mark.parametrize(("place", "told"), [(0, "the learner's process is gone"), (1, "the learner's process learner-1 is gone")])
def test_a_process_that_is_gone_is_the_reason_of_what_the_others_raise(monkeypatch, place, told):
    outcomes = [FAILED, FAILED, FAILED]
    outcomes[place] = ray.exceptions.RayActorError()
    with pytest.raises(ProcessLost, match=told):
        learners_that(monkeypatch, *outcomes).wait([0, 1, 2])


def test_a_worker_that_waits_for_a_dead_learners_weights_names_the_learner(monkeypatch):
    def gone(_, reference):
        raise ray.exceptions.RayTaskError("set_weights", "trace", ray.exceptions.ActorDiedError())

    monkeypatch.setattr(gangs.Gang, "_get", gone)
    with pytest.raises(gangs.ProcessLost, match="the learner's process is gone"):
        gangs.Gang.__new__(gangs.Gang).result(0, None)


def test_a_head_that_is_gone_answers_nobody():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert gangs.head_answers(address)
    assert not gangs.head_answers(address)


def test_a_head_that_was_replaced_is_told_from_a_wrong_token():
    told = "RPC error: {}: Perhaps the client is accessing GCS after it has restarted."
    assert head_replaced(ray.exceptions.AuthenticationError(told.format("WrongClusterID")))
    assert not head_replaced(ray.exceptions.AuthenticationError("Authentication failed: a token is missing"))
    assert not head_replaced(RuntimeError("WrongClusterID"))


# ---------------------------------------------------------------- the way of the weights
def sending(sent=100, arrived=(4, 4)):
    """A gang of two workers whose learner answers a send with `sent`, its workers with `arrived`; exceptions are raised."""

    def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    gang = gangs.Gang.__new__(gangs.Gang)
    gang.count, gang.device, gang.said = 2, "cpu", []
    gang._direct, gang._channel_at, gang._channels, gang._pushes, gang._weights = True, None, 0, 0, None
    gang.log = lambda level, message: gang.said.append(f"{level}: {message}")
    gang.learners = SimpleNamespace(ask_first=lambda method: method, ask=lambda method, *about: method)
    gang.workers = [SimpleNamespace(receive_weights=SimpleNamespace(remote=lambda *about: gang.said.append(about))) for _ in range(2)]
    gang.wait = lambda call: ("host", 1) if call == "open_channel" else answer(sent)
    gang.result = lambda worker, call: answer(arrived[worker])
    gang.publish_weights = lambda: "weights"
    gang.every_worker = lambda method, *arguments: gang.said.append((method, *arguments)) or [5, 5]
    return gang


def test_a_push_meets_once_and_sends_to_every_rank():
    gang = sending()
    assert gang.push_weights() == [4, 4] and gang.push_weights() == [4, 4]
    assert gang.said == [(1, ("host", 1), rank, 3, "cpu") for rank in (1, 2)] * 2


@pytest.mark.parametrize("failure", [{"sent": RuntimeError("peer is gone")}, {"arrived": (4, WorkerLost("worker-1 is gone"))}])
def test_weights_that_did_not_arrive_directly_go_by_the_object_store_and_meet_anew(failure):
    gang = sending(**failure)
    assert gang.push_weights() == [5, 5]
    *_, told, stored = gang.said
    assert told.startswith("warning: the weights take the way through the object store this time: ") and "gone" in told
    assert stored == ("load_weights", "weights")
    gang.push_weights()
    assert [about[0] for about in gang.said if type(about) is tuple and about[0] != "load_weights"] == [1, 1, 2, 2]


def test_a_push_without_a_learner_loses_the_attempt():
    gang = sending(sent=ProcessLost("the learner's process is gone"))
    with pytest.raises(ProcessLost):
        gang.push_weights()


@pytest.mark.parametrize(
    ("asked", "gpus", "directly"),
    [("auto", (1, 1), True), ("auto", (0, 0), False), ("auto", (0.5, 0.5), False), ("collective", (0, 0), True), ("object_store", (1, 1), False)],
)
def test_weights_go_directly_where_every_process_has_a_gpu_or_the_run_says_so(asked, gpus, directly):
    grant = [Bundle(name, gpus=share) for name, share in zip(("learner", "worker-0"), gpus, strict=True)]
    assignment = SimpleNamespace(grant=[Bundle("driver"), *grant], config=SimpleNamespace(resources=SimpleNamespace(weight_transfer=asked)))
    assert gangs.weights_go_directly(assignment) is directly
