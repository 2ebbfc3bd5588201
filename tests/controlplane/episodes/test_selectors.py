"""What the browser of episodes shows: conditions, facets, order, siblings, differences."""

import uuid

import pytest
from django.db.models import Avg, Count

from controlplane.episodes import selectors
from controlplane.episodes.models import Episode, Label, Turn
from controlplane.episodes.selectors import Filter
from controlplane.episodes.services import record_events
from tests.controlplane.factories import make_event, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def episodes(attempt):
    """Eight episodes over two steps: two groups of two samples each."""
    events, made = [], []
    for number in range(8):
        id, step, group, sample = uuid.UUID(int=number + 1), number // 4, number // 2 % 2, number % 2
        made.append(id)
        end = "verifier_error" if number == 7 else "max_turns_exceeded" if number == 6 else "finished"
        events += [
            make_event(
                id,
                "started",
                task=f"task-{group}",
                step=step,
                group=group,
                sample=sample,
                domain="physics" if group else "biology",
                purpose="eval" if number == 5 else "train",
                stage=step,
            ),
            make_event(id, "turn", 0, index=0, role="user", author="environment", text=f"What is the answer to question {group}?"),
            make_event(id, "turn", 1, index=1, role="assistant", author="student", text=f"The answer is letter {'ABCDEFGH'[number]}."),
            make_event(id, "finished", termination=end),
            make_event(id, "graded", score=None if number == 7 else float(number % 2), parsed=number != 2),
        ]
        if number < 4:
            events.append(make_event(id, "trained", step=step, advantage=0.5, filters=["repetition"] if number == 3 else []))
    record_events(attempt, events)
    return made


def found(rows=None, **conditions):
    rows = Episode.objects.all() if rows is None else rows
    return {id.int - 1 for id in selectors.filter_episodes(rows, Filter(**conditions)).values_list("id", flat=True)}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, set(range(8))),
        ({"termination": ["verifier_error", "max_turns_exceeded"]}, {6, 7}),
        ({"purpose": "eval"}, {5}),
        ({"stage": 1}, {4, 5, 6, 7}),
        ({"first_step": 1, "last_step": 1}, {4, 5, 6, 7}),
        ({"group": 0}, {0, 1, 4, 5}),
        ({"reward_min": 0.5}, {1, 3, 5}),
        ({"reward_max": 0.5}, {0, 2, 4, 6}),
        ({"missing": True}, {7}),
        ({"missing": False}, set(range(7))),
        ({"parsed": False}, {2}),
        ({"failed": True}, {0, 2, 4, 6, 7}),
        ({"failed": False}, {1, 3, 5}),
        ({"domain": ["physics"]}, {2, 3, 6, 7}),
        ({"filters": ["repetition"]}, {3}),
        ({"task": "TASK-1"}, {2, 3, 6, 7}),
        ({"search": "letter C"}, {2}),
        ({"search": '"question 1"'}, {2, 3, 6, 7}),
        ({"search": "answer -question"}, set(range(8))),
        ({"search": "letter", "termination": ["verifier_error"]}, {7}),
        ({"search": "nothing says this"}, set()),
        ({"search": "' OR 1=1 --"}, set()),
    ],
)
def test_conditions(episodes, conditions, expected):
    assert found(**conditions) == expected


def test_a_label_is_a_condition(episodes, owner):
    Label.objects.create(episode_id=episodes[3], user=owner, name="reward hack")
    assert found(label="reward hack") == {3}


def facets(**conditions):
    return {name: dict(values) for name, values in selectors.counted(Episode.objects.all(), Filter(**conditions))[1].items()}


def population(**conditions):
    return selectors.counted(Episode.objects.all(), Filter(**conditions))[0]


def test_facets_count_what_another_choice_would_give(episodes):
    narrowed = facets(termination=["finished"], domain=["biology"])
    assert narrowed["termination"] == {"finished": 4}
    assert narrowed["domain"] == {"biology": 4, "physics": 2}
    assert narrowed["filters"] == {}
    assert facets()["filters"] == {"repetition": 1}
    assert facets()["parsed"] == {True: 7, False: 1}


def test_a_mean_counts_no_missing_reward(episodes):
    assert population(first_step=1) == selectors.Population(4, 3, pytest.approx(1 / 3))
    assert population(missing=True) == selectors.Population(1, 0, None)
    assert population(search="nothing says this") == selectors.Population(0, 0, None)


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"termination": ["finished"]},
        {"purpose": "train", "domain": ["physics"]},
        {"state": ["done"], "stage": 1},
        {"parsed": False},
        {"filters": ["repetition"]},
        {"search": "letter", "termination": ["finished", "verifier_error"], "parsed": True},
        {"failed": False, "domain": ["biology"]},
    ],
)
def test_the_population_is_that_of_the_rows(episodes, conditions):
    rows = selectors.filter_episodes(Episode.objects.all(), Filter(**conditions))
    expected = rows.aggregate(episodes=Count("id"), graded=Count("score"), mean=Avg("score"))
    assert population(**conditions) == selectors.Population(expected["episodes"], expected["graded"], pytest.approx(expected["mean"]))


def test_one_query_counts_everything(episodes, django_assert_num_queries):
    with django_assert_num_queries(1):
        selectors.counted(Episode.objects.all(), Filter(search="letter", domain=["physics"]))


def test_newest_step_first_and_groups_together(episodes):
    order = [id.int - 1 for id in Episode.objects.order_by(*selectors.ORDER).values_list("id", flat=True)]
    assert order == [4, 5, 6, 7, 0, 1, 2, 3]


def test_neighbours_follow_the_order_of_the_list(episodes):
    order = list(Episode.objects.order_by(*selectors.ORDER))
    for position, episode in enumerate(order):
        before, after = selectors.neighbours(Episode.objects.all(), episode)
        assert before == (order[position - 1].pk if position else None)
        assert after == (order[position + 1].pk if position + 1 < len(order) else None)


def test_siblings_are_the_group_of_the_same_step(episodes):
    siblings = selectors.siblings(Episode.objects.get(pk=episodes[2]))
    assert [episode.pk for episode in siblings] == [episodes[2], episodes[3]]


def test_turns_come_in_pages(episodes):
    episode = Episode.objects.get(pk=episodes[0])
    (first,) = selectors.turns_of(episode, limit=1)
    assert [turn.index for turn in selectors.turns_of(episode, after=first.index)] == [1]


def turns(*texts):
    return [
        Turn(index=index, role="user" if index % 2 == 0 else "assistant", author="student", text=text) for index, text in enumerate(texts)
    ]


def test_a_changed_turn_is_compared_word_by_word():
    same, changed = selectors.compare_turns(turns("Q?", "I think it is B."), turns("Q?", "I know it is C."))
    assert same.kind == "equal" and changed.kind == "changed"
    assert [piece[0] for piece in changed.pieces] == ["equal", "changed", "equal", "changed"]
    assert "".join(piece[1] for piece in changed.pieces) == "I think it is B."
    assert "".join(piece[2] for piece in changed.pieces) == "I know it is C."


def test_turns_that_one_side_lacks_stand_alone():
    pairs = selectors.compare_turns(turns("Q?", "A", "more?", "B"), turns("Q?", "A"))
    assert [pair.kind for pair in pairs] == ["equal", "equal", "left", "left"]
    assert [pair.kind for pair in selectors.compare_turns([], turns("Q?"))] == ["right"]


@pytest.mark.parametrize("text", ["", " ", "one", " two  words ", "a\nb\n\n", "\t"])
def test_words_join_back_to_the_text(text):
    assert "".join(selectors._words(text)) == text


def test_an_export_holds_everything_but_the_blobs(episodes, owner):
    Label.objects.create(episode_id=episodes[0], user=owner, name="good", comment="see turn 1")
    document = selectors.export(Episode.objects.get(pk=episodes[0]))
    assert [turn["text"] for turn in document["turns_text"]] == ["What is the answer to question 0?", "The answer is letter A."]
    assert document["labels"][0]["user"] == "olga" and document["score"] == 0.0


def test_other_runs_stay_out(episodes, team, owner, outsider):
    assert not found(Episode.objects.filter(run=make_run(team)))
    assert Episode.objects.for_user(owner).count() == 8
    assert not Episode.objects.for_user(outsider).exists()
