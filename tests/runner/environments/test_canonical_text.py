"""Equal states are equal text whatever order objects are listed in; different states stay different."""

import pytest

from runner.environments.canonical_text import canonical

ROOM = "This room is called the kitchen. In it, you see: \n\ta counter. On the counter is: a bowl (containing a banana, an orange), a drawer.\n\tthe agent"
SAME = "\tthe agent\nThis room is called the kitchen. In it, you see:\n\ta counter. On the counter is: a drawer, a bowl (containing an orange, a banana). "


def test_lines_lists_and_parentheses_have_no_order():
    assert canonical(ROOM) == canonical(SAME)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "In the box is: a cup (containing a pot (containing tea, milk), sugar), a lid.",
            "In the box is: a lid, a cup (containing sugar, a pot (containing milk, tea)).",
        ),
        (
            "In the toilet is: A drain, which is closed, a substance called water.",
            "In the toilet is: a substance called water, A drain, which is closed.",
        ),
    ],
)
def test_nesting_and_qualifiers_go_with_their_item(one, other):
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    "other",
    [
        ROOM.replace("an orange", "an apple"),
        ROOM.replace("kitchen", "hallway"),
        ROOM.replace("a bowl (containing a banana, an orange), a drawer", "a bowl (containing a banana), a drawer, an orange"),
    ],
)
def test_another_state_is_another_text(other):
    assert canonical(ROOM) != canonical(other)


def test_what_qualifies_stays_with_what_it_qualifies():
    assert canonical("On it is: a door, which is open, a box, which is closed.") != canonical(
        "On it is: a door, which is closed, a box, which is open."
    )


def test_it_is_idempotent_and_an_unbalanced_parenthesis_does_no_harm():
    assert canonical(canonical(ROOM)) == canonical(ROOM)
    assert canonical("a) b (c, a") == "a) b (c, a"
