"""What a method credited each turn with: kept with the episode, shown beside the turn, harmless whatever a runner sends."""

import math
import uuid

import pytest
from django.urls import reverse

from controlplane.episodes import selectors
from controlplane.episodes.models import Episode
from controlplane.episodes.services import record_events
from controlplane.episodes.turn_facts import turn_facts
from runner.contract.events import InvalidBatch
from tests.controlplane.factories import make_event

pytestmark = pytest.mark.django_db

SAID = {"index": 1, "role": "assistant", "author": "student", "text": "<action>wait</action>", "tokens": 5, "reward": 0.5}
CREDIT = {"turn": 0, "index": 1, "return": 0.475, "episode_advantage": -0.6211, "step_advantage": -0.5892, "advantage": -1.2103}
CREDIT |= {"anchor": "0123456789abcdef", "group_size": 3, "group_episodes": 2, "valid": False}


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def record(attempt, credit, **facts):
    id = uuid.uuid4()
    events = [
        make_event(id, "started", task="1-1/3", step=4, group=0, sample=0, purpose="train"),
        make_event(
            id,
            "turn",
            0,
            index=0,
            role="user",
            author="environment",
            text="You are in a kitchen.",
            facts={"score": 8.0, "look": "a kitchen"},
        ),
        make_event(id, "turn", 1, **SAID, facts=facts),
        make_event(id, "trained", step=4, advantage=-1.0, trained_tokens=5, masked=False, filters=[], turns=credit),
    ]
    record_events(attempt, events)
    return Episode.objects.get(pk=id)


def test_both_parts_come_back_with_their_turn(attempt):
    shown, said = selectors.turns_of(record(attempt, [CREDIT], understood=True))
    assert shown.credit is None and shown.facts == {"score": 8.0, "look": "a kitchen"}
    assert said.credit == CREDIT and said.facts == {"understood": True}
    assert selectors.turn_row(said)["credit"]["step_advantage"] == -0.5892


def test_the_page_tells_both_parts_and_marks_what_was_not_understood(browser, attempt):
    html = browser.get(reverse("episode", args=[record(attempt, [CREDIT]).pk])).content.decode()
    assert "advantage −1.210 = episode −0.621 + step −0.589" in html and "Not understood" in html
    assert "01234567" in html and "3 turns of 2 episodes" in html


def test_a_turn_without_a_state_and_without_numbers_is_shown_as_such(browser, attempt):
    odd = {"index": 1, "advantage": math.nan, "anchor": None}
    html = browser.get(reverse("episode", args=[record(attempt, [odd]).pk])).content.decode()
    assert "state not told" in html and "Not understood" not in html


@pytest.mark.parametrize("credit", [[{"index": [1]}], [{"index": 1, "advantage": "much"}], ["x"], {"index": 1}])
def test_credit_of_another_shape_is_refused_by_its_name(attempt, credit):
    with pytest.raises(InvalidBatch, match="turns"):
        record(attempt, credit)


def test_lists_do_not_load_it(attempt):
    episode = record(attempt, [CREDIT])
    for rows in (selectors.filter_episodes(Episode.objects.all(), selectors.Filter()), selectors.siblings(episode)):
        assert rows.get().get_deferred_fields() == {"turn_credit"}


def test_what_the_environment_told_stands_beside_the_turn(browser, attempt):
    told = {
        "action": "pick up orange",
        "room": "kitchen",
        "score": 8.0,
        "ticks": 12,
        "understood": True,
        "listed": False,
        "ambiguous": True,
    }
    html = browser.get(reverse("episode", args=[record(attempt, [CREDIT], **told).pk])).content.decode()
    for title, text in (("Room", "kitchen"), ("Action read", "pick up orange"), ("Score", "8"), ("Tick", "12")):
        assert f"<dt>{title}</dt><dd>{text}</dd>" in html
    assert "<dd>not among the listed actions, ambiguous</dd>" in html


def test_facts_of_another_shape_are_left_out_and_long_ones_cut():
    assert turn_facts({"room": ["a"], "score": True, "inventory": "", "ticks": None, "listed": "no"}) == []
    assert turn_facts({"inventory": "You see:\n\tan orange\n\ta cup\n"}) == [("Inventory", "You see: an orange, a cup")]
    assert len(turn_facts({"room": "x" * 5000})[0][1]) == 301
