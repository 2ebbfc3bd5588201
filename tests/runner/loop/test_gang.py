"""A gang without Ray: engines that make room, a learner of several processes, deaths around it."""

import socket
from types import SimpleNamespace

import pytest
import ray

from runner import gang as gangs
from runner import learner_group
from runner.gang_errors import ProcessLost, head_replaced
from runner.learner_group import LearnerGroup


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
