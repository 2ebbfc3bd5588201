"""Digest, reward keys, the catalogue of findings, and the anchor gate."""

import hashlib
import re
from pathlib import Path

import pytest

from runner.contract.anchors import AnchorResult, AnchorState, problems, summarise
from runner.contract.repair import RULES, FileEntry, Finding, is_blocked, read_listing, reward_key, task_digest, write_listing

SHA = hashlib.sha256(b"x").hexdigest()


def test_a_digest_by_hand():
    files = [FileEntry("b/run.sh", True, SHA), FileEntry("a.txt", False, SHA)]
    by_hand = hashlib.sha256(f"{SHA} - a.txt\n{SHA} x b/run.sh\n".encode()).hexdigest()
    assert task_digest(files) == task_digest(reversed(files)) == by_hand


@pytest.mark.parametrize(
    "changed", [FileEntry("a", True, SHA), FileEntry("b", False, SHA), FileEntry("a", False, hashlib.sha256(b"y").hexdigest())]
)
def test_path_bit_and_content_each_change_the_digest(changed):
    assert task_digest([changed]) != task_digest([FileEntry("a", False, SHA)])


def test_a_listing_reads_back_and_nothing_else_does():
    files = [FileEntry("a b.txt", False, SHA), FileEntry("é", True, SHA)]
    assert read_listing(write_listing(files)) == files
    for data in (b"", f"{SHA} - b\n{SHA} - a\n".encode(), f"{SHA} ? a\n".encode(), f"{SHA} - a".encode()):
        if data:
            with pytest.raises(ValueError):
                read_listing(data)
    with pytest.raises(ValueError, match="printable"):
        write_listing([FileEntry("a\nb", False, SHA)])


@pytest.mark.parametrize(
    "category, gpus, key",
    [
        ("repair", 0, "reward_repair"),
        ("implementation", 1, "reward_repair"),
        ("acceleration", 0, "reward"),
        ("acceleration", 1, "reward_gpu"),
    ]
    + [("", 0, "reward"), ("poetry", 0, None)],
)
def test_reward_keys(category, gpus, key):
    assert reward_key(category, gpus) == key


def test_every_finding_has_a_meaning_and_a_remedy():
    assert set(RULES) == {f"E{number:02}" for number in range(1, 17)} | {f"W{number:02}" for number in range(1, 12)}
    assert all(rule.title and rule.remedy for rule in RULES.values())
    used = set(re.findall(r'"([EW]\d\d)"', "".join(path.read_text() for path in Path("runner/repair").glob("*.py"))))
    assert set(RULES) - used == {"E13", "W06", "W11"}, "the rest is found on nodes and in the control plane"


def test_only_errors_block_and_tmux_blocks_the_terminal_alone():
    blocked = {code for code in RULES if is_blocked([Finding(code=code, detail="")])}
    assert blocked == {code for code in RULES if code[0] == "E"} - {"E16"}


def result(score, **fields):
    return AnchorResult(score=score, **fields)


@pytest.mark.parametrize(
    "agent, given, floor, words",
    [
        ("oracle", result(1.0, floor=0.35), 0.35, []),
        ("oracle", result(0.99), 0.35, []),
        ("oracle", result(0.98999), None, ["oracle scored 0.98999"]),
        ("oracle", result(None, reason="verifier_timeout"), None, ["oracle was not graded: verifier_timeout"]),
        ("nop", result(0.0, raw_reward=0.0, floor=0.35), 0.35, []),
        ("nop", result(0.0, raw_reward=0.1), None, ["nop scored 0 (raw reward 0.1)"]),
        ("nop", result(0.2), None, ["nop scored 0.2"]),
        ("nop", result(None), None, ["nop was not graded: no reason was given"]),
        ("nop", result(0.0, floor=0.0), 0.575, ["a floor of 0, the bank says 0.575"]),
        ("nop", result(0.0, floor=0.35000001), 0.35, []),
        ("oracle", result(0.5, floor=0.1), 0.2, ["oracle scored 0.5", "a floor of 0.1"]),
    ],
)
def test_the_gate_of_one_result(agent, given, floor, words):
    found = problems(agent, given, floor)
    assert len(found) == len(words)
    assert all(word in problem for word, problem in zip(words, found))


GOOD = {(task, agent): [] for task in ("a", "b") for agent in ("oracle", "nop")}


@pytest.mark.parametrize(
    "tasks, results, running, state",
    [
        ("ab", GOOD, False, AnchorState.PROVEN),
        ("ab", GOOD, True, AnchorState.PROVEN),
        ("ab", {}, False, AnchorState.UNPROVEN),
        ("ab", {}, True, AnchorState.PROVING),
        ("abc", GOOD, False, AnchorState.UNPROVEN),
        ("ab", GOOD | {("b", "nop"): ["pays"]}, False, AnchorState.BROKEN),
        ("abc", GOOD | {("b", "nop"): ["pays"]}, True, AnchorState.PROVING),
        ("a", GOOD | {("b", "nop"): ["pays"]}, False, AnchorState.PROVEN),
        ("", GOOD, False, AnchorState.UNPROVEN),
    ],
)
def test_the_gate_of_a_version(tasks, results, running, state):
    assert summarise(tasks, results, running).state == state


def test_the_gate_says_which_task_is_broken_and_what_is_missing():
    found = summarise("abc", GOOD | {("b", "nop"): ["pays"]})
    assert (found.broken, found.missing) == ({"b": ["pays"]}, [("c", "oracle"), ("c", "nop")])
    assert found.sentence == "1 of 3 tasks are broken, 4 of 6 results are in"
