"""Gold paths as demonstrations: by variation, from the training split, balanced, and never wiser than the student could be."""

import gzip
import json
from pathlib import Path

import pytest

from runner.contract.bank import Task, read_bank, write_bank
from runner.importers.errors import ImportRefused
from runner.importers.gold import GoldEpisode, GoldOptions, GoldTurn, choose, demonstrations, evenly, thought

RECORDED = Path(__file__).parents[4] / "shared" / "data" / "scienceworld_gold.jsonl.gz"
GOAL = "Your task is to boil water. For compounds without a boiling point, combusting the substance is also acceptable."


def task(variation=0, kind="boil", split="train"):
    return Task(key=f"1-1/{variation}" if kind == "boil" else f"{kind}/{variation}", split=split, family=kind, payload={"x": 1})


def episode(length, variation=0, kind="boil", split="train", reached=True, answer="You see a stove."):
    turns = [GoldTurn(f"prompt {number}", f"act {number}", answer) for number in range(length)]
    return GoldEpisode(task(variation, kind, split), GOAL, turns, reached)


def test_a_pair_is_the_prompt_of_a_turn_and_the_reply_that_takes_the_gold_action():
    (first, second), count = demonstrations([episode(2)], GoldOptions())
    assert (first.key, first.task, first.kind, first.split) == ("1-1/0/000", "1-1/0", "gold", "train")
    assert first.prompt == "prompt 0" and second.completion == "<think>I have to boil water. Next: act 1.</think><action>act 1</action>"
    assert count.pairs == 2 and not first.history
    (empty, _), _ = demonstrations([episode(2)], GoldOptions(think="empty"))
    assert empty.completion == "<think></think><action>act 0</action>"


def test_an_answer_that_was_not_seen_yet_is_in_no_reply():
    secret = "You find the hidden key."
    pairs, _ = demonstrations([episode(5, answer=secret)], GoldOptions())
    assert not any(word in pair.completion for pair in pairs for word in ("hidden", "key"))
    assert (
        thought("Do it now! Then rest.", "wait") == "I have to Do it now!. Next: wait."
        and thought("boil", "wait") == "I have to boil. Next: wait."
    )


@pytest.mark.parametrize("split", ["dev", "test"])
def test_gold_of_an_evaluation_split_is_refused(split):
    with pytest.raises(ImportRefused, match=f"of split '{split}', which is for evaluation"):
        demonstrations([episode(2), episode(2, 7, split=split)], GoldOptions())


def test_an_episode_that_did_not_reach_the_full_score_teaches_nothing():
    pairs, count = demonstrations([episode(2), episode(3, 1, reached=False)], GoldOptions())
    assert {pair.task for pair in pairs} == {"1-1/0"} and count.unsolved == ["1-1/1"] and "1-1/1" in count.sentence()


def test_a_long_episode_is_cut_and_called_so_or_dropped():
    options = GoldOptions(max_actions=4)
    pairs, count = demonstrations([episode(6), episode(4, 1)], options)
    assert [pair.kind for pair in pairs] == ["gold_cut"] * 4 + ["gold"] * 4 and count.cut == 1
    kept, count = demonstrations([episode(6), episode(4, 1)], GoldOptions(max_actions=4, drop_cut=True))
    assert {pair.kind for pair in kept} == {"gold"} and count.episodes == 1


def test_a_kind_of_task_gives_at_most_its_share():
    pairs, count = demonstrations([episode(90, 0, "genetics"), episode(90, 1, "genetics"), episode(10)], GoldOptions(pairs_per_kind=50))
    genetics = [pair for pair in pairs if pair.key.startswith("genetics")]
    assert len(genetics) == 50 and len(pairs) == 60 and count.balanced_away == 130
    assert {pair.task for pair in genetics} == {"genetics/0", "genetics/1"}, "spread over its variations"


def test_turns_that_change_nothing_can_be_left_out():
    opened = episode(3, answer="The door is already open.")
    assert len(demonstrations([opened], GoldOptions())[0]) == 3
    pairs, count = demonstrations([opened, episode(2, 1)], GoldOptions(drop_no_ops=True))
    assert len(pairs) == 2 and count.no_ops == 3


def test_variations_are_chosen_evenly_and_from_the_training_split():
    tasks = [task(variation, split="train" if variation < 9 else "dev") for variation in range(12)] + [task(0, "melt")]
    assert [item.key for item in choose(tasks, 3)] == ["1-1/0", "1-1/4", "1-1/8", "melt/0"]
    assert evenly([1, 2, 3], 1) == [1] and evenly([], 3) == []


def test_they_travel_in_a_bank_and_older_banks_keep_their_digest():
    pairs, _ = demonstrations([episode(2)], GoldOptions())
    data, _ = write_bank([task(), *pairs])
    assert {pair.task for pair in read_bank(data)[1]} == {"1-1/0"}
    plain = pairs[0].model_copy(update={"task": ""})
    assert "task" not in plain.model_dump() and "history" not in plain.model_dump()


@pytest.mark.skipif(not RECORDED.is_file(), reason="the recorded gold paths are not beside this checkout")
def test_the_recorded_paths_make_the_published_number_of_pairs():
    """Section 5: 177 episodes, 7,990 pairs, 6,147 when cut at 100 actions; 534 of them open doors that are open."""
    episodes = []
    for line in gzip.open(RECORDED, "rt"):
        found = json.loads(line)
        turns = [GoldTurn("p", step["a"], step["obs"]) for step in found["steps"]]
        episodes.append(
            GoldEpisode(
                task(found["variation"], found["task"], found["split"]), found["description"], turns, found["steps"][-1]["score"] == 100
            )
        )
    everything = GoldOptions(max_actions=10_000, pairs_per_kind=10_000)
    assert demonstrations(episodes, everything)[1].pairs == 7990
    pairs, count = demonstrations(episodes, GoldOptions(pairs_per_kind=10_000))
    assert len(pairs) == 6147 and count.cut == 23 and count.episodes == 177
    whole, count = demonstrations(episodes, GoldOptions(max_actions=10_000, pairs_per_kind=10_000, drop_no_ops=True))
    assert count.no_ops == 534 + 14, "doors, and a few sinks, freezers and cupboards"
