"""The oracle's paths in a real simulator, and who may have them."""

import json

import pytest

from runner.contract.bank import Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.termination import HANDLING, Termination
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld.gold import GoldRefused, GoldService, Recorded, replay
from tests.runner.environments.scienceworld.conftest import task

TRAIN, DEV, TEST = task("4-2", 0), task("4-2", 150, "dev"), task("4-2", 225, "test")


@pytest.fixture
def service(tmp_path):
    service = GoldService([TRAIN, DEV, TEST], Settings(gold_timeout_sec=300, boot_timeout_sec=300), tmp_path, tmp_path / "registry")
    yield service
    service.close()


@pytest.mark.parametrize("held_out", [DEV, TEST])
@pytest.mark.parametrize("purpose", ["training", "prefix"])
def test_gold_of_an_evaluation_split_is_refused_as_training_or_prefix_data(service, held_out, purpose):
    service.check(TRAIN, purpose)
    service.check(held_out, "baseline")
    with pytest.raises(GoldRefused, match=f"{held_out.key} is in split '{held_out.split}' .* cannot serve as {purpose} data"):
        service.check(held_out, purpose)


def test_the_bank_version_says_which_split_a_variation_is_in(tmp_path):
    moved = GoldService([task("4-2", 150, "train"), task("4-2", 0, "dev")], Settings(), tmp_path)
    moved.check(task("4-2", 150, "train"), "training")
    claimed = Task.model_validate(TRAIN.model_dump() | {"key": "4-2/mine"})
    with pytest.raises(GoldRefused, match="split 'dev'"):
        moved.check(claimed, "training")
    with pytest.raises(GoldRefused, match="is not in the bank version in use"):
        moved.check(task("4-2", 1), "training")


async def test_a_path_is_made_once_and_kept_and_a_baseline_yields_no_training_rows(service, java, tmp_path):
    path = await service.path(TRAIN, "training")
    assert path.for_training() == path.actions and path.actions and service.generated == 1
    (kept,) = tmp_path.rglob("0.json")
    assert kept.relative_to(tmp_path).parts == ("scienceworld-gold", "1.2.3", "easy", "find-non-living-thing", "0.json")
    baseline = await service.path(TRAIN, "baseline")
    assert baseline.actions == path.actions and service.generated == 1
    with pytest.raises(GoldRefused, match="yields no training rows"):
        baseline.for_training()
    document = json.loads(kept.read_text())
    kept.write_text(json.dumps(document | {"actions": ["focus on agent"]}))
    await service.path(TRAIN, "training")
    assert service.generated == 2, "what was changed on the disk is made anew"


@pytest.mark.parametrize("key", ["4-2/0", "7-1/0", "7-2/12"])
async def test_recorded_gold_solves_its_task_and_earns_what_was_recorded(make, gold_file, key):
    row = next(row for row in gold_file if f"{row['task_id']}/{row['variation']}" == key)
    environment = make(max_actions=1000)
    recorded = [Recorded(step["a"], step["obs"], step["score"]) for step in row["steps"]]
    found = await replay(environment, task(row["task_id"], row["variation"]), row["gold_actions"], recorded)
    await environment.close()
    assert found.reached and len(found.turns) == row["completed_at"] and environment.evidence["success"]
    assert [turn.step.situation.score for turn in found.turns] == [step["score"] for step in row["steps"]]
    assert environment.course.initial == row["initial_score"] and "Your task is" in found.turns[0].prompt[0]["content"]


async def test_a_prefix_that_takes_another_course_ends_as_a_mismatch_and_is_tried_once_more(make):
    environment = make()
    wrong = [Recorded("teleport to kitchen", "You teleport to the kitchen.", 99)]
    with pytest.raises(EnvironmentFailure, match="recorded score 99, now 25") as caught:
        await replay(environment, task("4-1", 0), ["teleport to kitchen", "look around"], wrong, strict=True)
    await environment.close()
    assert caught.value.termination is Termination.REPLAY_MISMATCH and HANDLING[caught.value.termination].retry == "episode_once"
