import pytest

from runner.contract.bank import Choice
from runner.environments.extraction import extract_label

FOUR = [Choice(label=label, text=text) for label, text in zip("ABCD", ("iron", "copper and tin", "gold", "A noble gas"))]
TWO = FOUR[:2]


@pytest.mark.parametrize(
    ("reply", "label", "rule"),
    [
        ("B", "B", "whole"),
        (" b.\n", "B", "whole"),
        ("**(C)**", "C", "whole"),
        ("`D`", "D", "whole"),
        ("<think>A. looks right, answer is A</think>\nB", "B", "whole"),
        ("so \\boxed{C}", "C", "boxed"),
        ("\\boxed{\\text{B}} and nothing else", "B", "boxed"),
        ("$\\boxed{B. copper and tin}$", "B", "boxed"),
        ("The answer is B", "B", "stated"),
        ("A: no. B: no. C: maybe. D: no. The correct answer is **C**.", "C", "stated"),
        ("First I thought the answer is A. No, the answer is: D", "D", "stated"),
        ("**Answer:** (B) copper and tin", "B", "stated"),
        ("answer is option B", "B", "stated"),
        ("C. gold", "C", "leading"),
        ("(A) iron, of course", "A", "leading"),
        ("D) A noble gas", "D", "leading"),
        ("B: copper", "B", "leading"),
        ("gold\nC", "C", "last line"),
        ("The ore holds it.\nSo it must be C here", "C", "last line"),
        ("gold", "C", "text"),
        ("copper  and tin.", "B", "text"),
    ],
)
def test_finds_the_label_and_names_the_rule(reply, label, rule):
    found = extract_label(reply, FOUR)
    assert (found.label, found.rule) == (label, rule)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I do not know",
        "E",
        "\\boxed{A} or \\boxed{B}",
        "The answer is A or B",
        "The answer is A, B, C or D",
        "The answer is A. The answer is B. The answer is C. The answer is D.",
        "A. iron\nB. copper and tin",
        "A. iron\nB. copper and tin\nC. gold\nD. A noble gas",
        "A B C D",
        "It is A, it is B, it is C, it is D.\nD",
        "between A and B",
        "Banana",
        "iron or gold",
        "A's",
    ],
)
def test_leaves_unparsed_what_settles_on_nothing(reply):
    assert extract_label(reply, FOUR).label is None


def test_a_stronger_rule_that_contradicts_itself_is_not_overruled_by_a_weaker_one():
    found = extract_label("\\boxed{A} \\boxed{B}\nThe answer is C", FOUR)
    assert found.label is None and found.rule.startswith("boxed")


def test_only_the_labels_of_the_row_count():
    assert extract_label("C", TWO).label is None
    assert extract_label("The answer is D", TWO).label is None
    assert extract_label("A or B", TWO).label is None


def test_a_text_two_options_share_chooses_neither():
    twins = [Choice(label="A", text="same"), Choice(label="B", text="same"), Choice(label="C", text="other")]
    assert extract_label("same", twins).label is None
    assert extract_label("other", twins).label == "C"


def test_labels_are_taken_literally():
    odd = [Choice(label=".+", text="x"), Choice(label="a|b", text="y")]
    assert extract_label("anything", odd).label is None
    assert extract_label("The answer is a|b", odd).label == "a|b"


def test_a_long_reply_is_read_in_linear_time():
    reply = "the answer is " * 20_000 + "( " * 20_000
    assert extract_label(reply, FOUR).label is None
