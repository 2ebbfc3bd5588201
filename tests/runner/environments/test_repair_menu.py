"""The warm start of a bank with menus: it teaches how to answer, never what."""

import re
from collections import Counter

import pytest

from runner.agents.menu import Dialogue, chosen, offered
from runner.contract.bank import Demonstration, MenuEdit, Task, read_bank, write_bank
from runner.contract.canonical import canonical_bytes
from runner.environments.repair_menu import DIALOGUES, DOUBLE_LOOKUPS, LISTS, LOOKUPS, demonstrations
from tests.runner.environments.toy_repair import MENU

EDITS = [MenuEdit.model_validate(edit) for edit in MENU]


def task(split="train", menu=MENU):
    payload = {
        "task_digest": "a" * 64,
        "name": "demo/heat",
        "description": "repair of heat",
        "hints": {"L2": "In src/flux.txt."},
        "menu": menu,
        "checks": ["heat-32"],
    }
    return Task(key=f"demo/heat-{split}", split=split, payload=payload)


@pytest.fixture(scope="module")
def lessons():
    return list(demonstrations([task(), task("eval")], 1))


def test_the_same_seed_gives_the_same_lessons(lessons):
    assert lessons[:50] == list(demonstrations([task(), task("eval")], 1))[:50] != list(demonstrations([task()], 2))[:50]
    assert len({item.key for item in lessons}) == len(lessons)


def test_answers_are_drawn_evenly_so_that_nothing_is_given_away(lessons):
    firsts = [item for item in lessons if item.kind == "menu" and not item.history]
    assert len(firsts) == DIALOGUES
    by_file = Counter(
        line.partition(". ")[2] for item in firsts for line in item.prompt.splitlines() if line.startswith(f"{item.completion}. ")
    )
    assert set(by_file) == {"src/flux.txt", "src/time.txt"} and abs(by_file["src/flux.txt"] / DIALOGUES - 0.5) < 0.06


def test_every_answer_is_one_of_the_options_and_history_alternates(lessons):
    for item in (item for item in lessons if item.kind != "list"):
        options = [line for line in item.prompt.splitlines() if re.match(r"\d+\. ", line)]
        assert 1 <= int(item.completion) <= len(options)
        assert len(item.history) % 2 == 0 and len(item.history) <= 6


def test_a_dialogue_carries_no_hint_that_its_drawn_answer_could_contradict(lessons):
    assert not any("In src/flux.txt." in text for item in lessons if item.kind == "menu" for text in (item.prompt, *item.history))


def options_of(prompt: str) -> list[str]:
    return [line.partition(". ")[2] for line in prompt.splitlines() if re.match(r"\d+\. ", line)]


def test_a_lookup_names_the_place_of_the_one_option_that_was_named_before_its_list(lessons):
    lookups = [item for item in lessons if item.kind == "lookup"]
    assert len(lookups) == LOOKUPS + 2 * DOUBLE_LOOKUPS and sum(bool(item.history) for item in lookups) == DOUBLE_LOOKUPS
    for item in lookups:
        told = (item.history or [item.prompt])[0].partition("\n\n")[0]
        options = options_of(item.prompt)
        wanted = options.pop(int(item.completion) - 1)
        assert f" {wanted}:" in f"{told}:"
        words = set(re.findall(r"[^\s:]+", told.removeprefix("In:"))) - set(wanted.split())
        assert not words & {word for option in options for word in option.split()}


def test_a_list_is_answered_whole_with_each_name_by_its_number(lessons):
    lists = [item for item in lessons if item.kind == "list"]
    assert len(lists) == LISTS
    for item in lists:
        numbered = {name: str(number) for number, name in enumerate(options_of(item.prompt), 1)}
        answers = [line.removeprefix("- ").rpartition(":")[::2] for line in item.completion.splitlines()]
        assert {name for name, _ in answers} == set(numbered) and len(answers) == len(numbered) * (1 if len(numbered) > 3 else 2)
        assert all(numbered[name] == number for name, number in answers)
    assert sum(item.completion.count("\n") + 1 for item in lists) / LISTS >= 4


def test_the_place_of_an_answer_is_drawn_evenly(lessons):
    places = Counter(item.completion for item in lessons if item.kind == "lookup" and len(options_of(item.prompt)) == 2)
    assert abs(places["1"] / places.total() - 0.5) < 0.1


def test_no_word_of_a_held_out_task_is_taught():
    secret = task("eval", [edit | {"label": f"zyzzyva {edit['label']}"} for edit in MENU])
    assert not any("zyzzyva" in f"{item.prompt}{item.completion}" for item in demonstrations([task(), secret], 1))


def test_a_bank_without_menus_has_no_warm_start():
    assert list(demonstrations([task(menu=[])], 1)) == [] and list(demonstrations([task("eval")], 1)) == []


def test_histories_travel_in_the_bank_and_older_banks_keep_their_digest(lessons):
    data, digest = write_bank([task(), *lessons[:20]])
    _, read, found = read_bank(data)
    assert found == digest and {item.key: item for item in read} == {item.key: item for item in lessons[:20]}
    plain = Demonstration(key="d", kind="statement", completion="Water boils.")
    assert b"history" not in canonical_bytes(plain)


# ---------------------------------------------------------------- the dialogue
@pytest.mark.parametrize(
    ("reply", "index"),
    [("2", 1), (" 2.", 1), ("number 2", 1), ("<think>1 or 3</think>2", 1), ("", None), ("0", None), ("4", None), ("1 2", None)],
)
def test_a_reply_names_an_option_by_the_only_number_in_it(reply, index):
    assert chosen(reply, 3) == index


def test_the_repair_is_offered_whatever_is_drawn():
    for seed in range(50):
        kept = offered(EDITS, EDITS[2], 2, seed)
        assert EDITS[2] in kept and len(kept) == 4 and len({edit.file for edit in kept}) == 2
    assert len({tuple(edit.label for edit in offered(EDITS, None, 2, seed)) for seed in range(20)}) > 3


def test_there_is_no_revision_without_a_turn_for_another_edit():
    dialogue = Dialogue(EDITS, 3, 1)
    dialogue.first()
    dialogue.answer("1")
    dialogue.answer("1")
    dialogue.tried.append(EDITS[0])
    assert not dialogue.may_revise
    dialogue.max_turns = 4
    assert dialogue.may_revise
