"""What a driver is given: its claim, its share of the cluster, its bank."""

import json
from pathlib import Path

import pytest

from runner.assignment import Bundle, Refused, from_claim, local_grant, open_bank
from runner.contract.bank import Task, write_bank
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.parse import parse


def reply_of(config, /, **changes):
    return {
        "run": "r",
        "attempt": 2,
        "config": json.loads(canonical_bytes(config)),
        "config_hash": digest(canonical_bytes(config)),
        "storage": "/s/runs/r",
        "grant": [{"bundle": "learner", "node": "n", "node_resource": "node:1", "cpus": 0.8, "gpus": 0}],
        "resume": None,
        "model_checkpoint": None,
        **changes,
    }


def test_a_claims_answer_becomes_the_assignment(config):
    resume = {"checkpoint": "c", "path": "/s/runs/r/checkpoints/step_4", "step": 4, "stage": 1, "policy_version": 4}
    assignment = from_claim(reply_of(config, resume=resume), "77")
    assert (assignment.attempt, assignment.number, assignment.config) == ("77", 2, config)
    assert assignment.folder == Path("/s/runs/r/attempts/2") and assignment.resume.step == 4
    assert assignment.grant[0].resources == {"CPU": 0.8, "node:1": 0.001}


def test_a_config_that_is_not_the_hashed_one_is_refused(config):
    with pytest.raises(Refused, match="hash"):
        from_claim(reply_of(config, config_hash="0" * 64), "77")


def test_a_config_from_before_a_field_existed_still_runs(config):
    launched = json.loads(canonical_bytes(config))
    del launched["max_attempts"]
    reply = reply_of(config, config=launched, config_hash=digest(canonical_bytes(launched)))
    assert from_claim(reply, "77").config == config


def test_a_config_that_this_runner_is_too_old_for_is_refused_with_the_remedy(config):
    launched = {**json.loads(canonical_bytes(config)), "of_tomorrow": 1}
    with pytest.raises(Refused, match="of_tomorrow.*upgrade this node"):
        from_claim(reply_of(config, config=launched, config_hash=digest(canonical_bytes(launched))), "77")


def test_a_grant_asks_only_for_what_it_has():
    assert Bundle("learner", cpus=1.0, gpus=2).resources == {"CPU": 1.0, "GPU": 2}


@pytest.mark.parametrize(("gpus", "workers", "learner", "each"), [(0, 2, 0, 0), (1, 1, 0.5, 0.5), (2, 1, 1, 1), (5, 2, 3, 1)])
def test_a_run_of_its_own_shares_gpus_that_are_too_few(config, gpus, workers, learner, each):
    resources = config.resources.model_copy(update={"gpus": gpus, "rollout_workers": workers})
    granted = {bundle.bundle: bundle.gpus for bundle in local_grant(config.model_copy(update={"resources": resources}))}
    assert granted == {"driver": 0, "learner": learner, **{f"worker-{index}": each for index in range(workers)}}


def test_every_process_of_the_learner_has_a_bundle(config):
    resources = config.resources.model_copy(update={"learner_processes": 3, "gpus": 6})
    granted = local_grant(config.model_copy(update={"resources": resources}))
    assert [(bundle.bundle, bundle.cpus, bundle.gpus) for bundle in granted] == [
        ("driver", 0.2, 0),
        *[("learner", 0.8, 2), ("learner-1", 0.8, 1), ("learner-2", 0.8, 1)],
        *[("worker-0", 0.5, 1), ("worker-1", 0.5, 1)],
    ]
    assert resources.cpus == pytest.approx(0.2 + 3 * 0.8 + 2 * 0.5)


def test_the_bank_is_filtered_and_its_digest_checked(config, bank_file):
    data = bank_file.read_bytes()
    bank = open_bank(data, config)
    assert (len(bank.train), len(bank.held_out), len(bank.demonstrations)) == (20, 10, 40)
    with pytest.raises(Refused, match="digest") as refused:
        open_bank(data, config, "0" * 64)
    assert refused.value.pointer == "/environment/version"
    narrow = parse({**json.loads(canonical_bytes(config)), "environment": {"type": "quiz", "domains": ["physics"]}})
    assert {task.domain for task in open_bank(data, narrow).train} == {"physics"}


def test_a_bank_with_nothing_to_train_on_is_refused(config):
    data, _ = write_bank([Task(key="a", split="eval", payload={"x": 1})])
    with pytest.raises(Refused) as refused:
        open_bank(data, config)
    assert refused.value.pointer == "/environment/train_split"
