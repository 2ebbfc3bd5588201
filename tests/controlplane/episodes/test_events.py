"""Five kinds of event fold into one episode: each once, in any order, and a missing reward stays missing."""

import math
import uuid
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.episodes.models import Episode, EpisodeEvent, Turn
from controlplane.episodes.services import abandon_open, label_episode, record_events
from runner.contract.events import InvalidBatch
from runner.contract.termination import HANDLING, Termination
from tests.controlplane.factories import make_attempt, make_event, make_run

pytestmark = pytest.mark.django_db

STARTED = {
    "task": "t-1",
    "step": 4,
    "stage": 1,
    "group": 2,
    "sample": 3,
    "domain": "physics",
    "purpose": "train",
    "policy_version": 7,
    "seed": 2**40,
}
FINISHED = {"termination": "finished", "policy_version": 8, "prompt_tokens": 10, "response_tokens": 5, "turns": 1, "seconds": 0.5}
GRADED = {"score": 1.0, "reason": "right letter", "parsed": True, "checks": {"letter": 1.0}, "grader": "choice"}
TRAINED = {"step": 4, "advantage": 0.25, "trained_tokens": 5, "masked": False, "filters": ["repetition"], "trained": "ab" * 32}
TURN = {"index": 0, "role": "assistant", "author": "student", "text": "The answer is B.", "tokens": 5}


def record(attempt, *events):
    record_events(attempt, list(events))
    return Episode.objects.get(pk=events[0]["episode"]) if events else None


def whole_life(id):
    return [
        make_event(id, "started", **STARTED),
        make_event(id, "turn", **TURN),
        make_event(id, "finished", **FINISHED),
        make_event(id, "graded", **GRADED),
        make_event(id, "trained", **TRAINED),
    ]


def columns(episode):
    return {field.attname: getattr(episode, field.attname) for field in Episode._meta.concrete_fields if field.attname != "id"}


def test_each_kind_fills_its_columns(attempt):
    episode = record(attempt, *whole_life(uuid.uuid4()))
    assert (episode.task, episode.step, episode.stage, episode.group, episode.sample, episode.seed) == ("t-1", 4, 1, 2, 3, 2**40)
    assert (episode.termination, episode.prompt_tokens, episode.response_tokens, episode.turns) == ("finished", 10, 5, 1)
    assert (episode.score, episode.parsed, episode.checks, episode.grade_reason) == (1.0, True, {"letter": 1.0}, "right letter")
    assert (episode.advantage, episode.trained_step, episode.filters, episode.trained) == (0.25, 4, ["repetition"], "ab" * 32)
    assert (episode.state, episode.run_id, episode.attempt) == ("done", attempt.run_id, 1)
    assert Turn.objects.get(episode=episode).text == "The answer is B."


def test_any_order_of_arrival_gives_the_same_episode(attempt):
    reference = None
    for order in permutations(range(5)):
        id = uuid.uuid4()
        for index in order:
            record(attempt, whole_life(id)[index])
        found = columns(Episode.objects.get(pk=id))
        reference = reference or found
        assert found == reference, order


def test_every_event_counts_once(attempt):
    id = uuid.uuid4()
    once = columns(record(attempt, *whole_life(id)))
    again = [{**event, "data": {**event["data"], "score": 0.0, "text": "other", "task": "other"}} for event in whole_life(id)]
    assert record_events(attempt, again) == []
    assert columns(Episode.objects.get(pk=id)) == once
    assert (EpisodeEvent.objects.count(), Turn.objects.count()) == (5, 1)


def test_the_state_only_goes_forward(attempt):
    id = uuid.uuid4()
    states = [record(attempt, event).state for event in whole_life(id)]
    assert states == ["running", "running", "grading", "done", "done"]


def test_a_grade_before_the_end_waits_for_it(attempt):
    id = uuid.uuid4()
    assert record(attempt, make_event(id, "graded", **GRADED)).state == "grading"
    assert record(attempt, make_event(id, "finished", **FINISHED)).state == "done"
    assert record(attempt, make_event(id, "started", **STARTED)).task == "t-1"


def test_an_ungraded_episode_has_no_reward(attempt):
    episode = record(
        attempt,
        make_event(uuid.uuid4(), "finished", **FINISHED),
    )
    assert episode.score is None and episode.reward is None
    episode = record(attempt, make_event(uuid.uuid4(), "graded", **{**GRADED, "score": None, "reason": "verifier died"}))
    assert episode.score is None and episode.grade_reason == "verifier died"


@pytest.mark.parametrize("termination", list(Termination))
@pytest.mark.parametrize("grade_first", [True, False])
def test_a_score_stands_only_where_the_termination_lets_it(attempt, termination, grade_first):
    id = uuid.uuid4()
    events = [make_event(id, "finished", **{**FINISHED, "termination": termination.value}), make_event(id, "graded", **GRADED)]
    episode = record(attempt, *(reversed(events) if grade_first else events))
    assert episode.score == (None if HANDLING[termination].reward == "null" else 1.0)
    assert episode.graded_score == 1.0
    assert episode.state == ("aborted" if HANDLING[termination].train == "dropped" else "done")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_a_failure_of_the_verifier(attempt, score):
    id = uuid.uuid4()
    episode = record(attempt, make_event(id, "finished", **FINISHED), make_event(id, "graded", **{**GRADED, "score": score}))
    assert (episode.score, episode.termination) == (None, "verifier_error")


def test_a_failed_grading_shows_and_a_regrade_lifts_it(attempt):
    id = uuid.uuid4()
    failed = {"score": None, "reason": "timeout", "termination": "verifier_timeout"}
    episode = record(attempt, make_event(id, "finished", **FINISHED), make_event(id, "graded", **failed))
    assert (episode.termination, episode.score, episode.state) == ("verifier_timeout", None, "done")
    episode = record(attempt, make_event(id, "graded", 1, **{**GRADED, "score": 0.0}))
    assert (episode.termination, episode.score) == ("finished", 0.0)


def test_a_regrade_lifts_a_failure_that_the_end_told(attempt):
    for order in permutations(range(3)):
        id = uuid.uuid4()
        events = [
            make_event(id, "finished", **{**FINISHED, "termination": "verifier_error"}),
            make_event(id, "graded", 0, score=None, reason="crash"),
            make_event(id, "graded", 1, **GRADED),
        ]
        for index in order:
            episode = record(attempt, events[index])
        assert (episode.termination, episode.score, episode.grade_ordinal) == ("finished", 1.0, 1), order


def test_the_highest_regrade_wins_whenever_it_comes(attempt):
    for order in permutations(range(3)):
        id = uuid.uuid4()
        for ordinal in order:
            episode = record(attempt, make_event(id, "graded", ordinal, **{**GRADED, "score": float(ordinal)}))
        assert (episode.graded_score, episode.grade_ordinal) == (2.0, 2), order


@pytest.mark.parametrize(
    ("word", "termination"),
    [("done", "finished"), ("overflow", "max_response_length_exceeded"), ("exploded", "unknown"), (None, "unknown")],
)
def test_other_words_for_an_end(attempt, word, termination):
    assert record(attempt, make_event(uuid.uuid4(), "finished", **{**FINISHED, "termination": word})).termination == termination


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("started", {"step": "four"}, "episodes.started.step: must be a whole number, got 'four'"),
        ("started", {"step": True}, "episodes.started.step"),
        ("started", {"group": 2**40}, "episodes.started.group"),
        ("started", {"evaluation": "x"}, "episodes.started.evaluation"),
        ("turn", {"text": 5}, "episodes.turn.text: must be text"),
        ("finished", {"sampled": "../etc"}, "episodes.finished.sampled: must be a SHA-256 digest"),
        ("graded", {"score": "1"}, "episodes.graded.score: must be a number"),
        ("graded", {"checks": []}, "episodes.graded.checks: must be a map"),
        ("graded", {"parsed": 1}, "episodes.graded.parsed"),
        ("trained", {"filters": "all"}, "episodes.trained.filters"),
    ],
)
def test_a_wrong_type_is_refused_by_its_name(attempt, kind, data, message):
    with pytest.raises(InvalidBatch, match=message):
        record_events(attempt, [make_event(uuid.uuid4(), kind, **data)])


def test_hostile_text_is_kept_as_it_is_but_for_nul(attempt):
    text = "<script>alert(1)</script>\x00\x1b[31m\u202e"
    id = uuid.uuid4()
    record(attempt, make_event(id, "turn", **{**TURN, "text": text}))
    assert Turn.objects.get(episode=id).text == text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_another_runs_episode_cannot_be_written(team, attempt):
    id = uuid.uuid4()
    record(attempt, make_event(id, "started", **STARTED))
    with pytest.raises(InvalidBatch, match="belongs to another run"):
        record_events(make_attempt(make_run(team)), [make_event(id, "graded", **GRADED)])


def test_turns_keep_their_order_and_gaps(attempt):
    id = uuid.uuid4()
    record(attempt, *(make_event(id, "turn", index, **{**TURN, "index": index, "text": f"turn {index}"}) for index in (4, 0, 2)))
    assert list(Turn.objects.filter(episode=id).order_by("index").values_list("index", "text")) == [
        (0, "turn 0"),
        (2, "turn 2"),
        (4, "turn 4"),
    ]


def test_many_episodes_in_one_batch_cost_few_queries(attempt, django_assert_max_num_queries):
    events = [event for _ in range(100) for event in whole_life(uuid.uuid4())]
    with django_assert_max_num_queries(6):
        record_events(attempt, events)
    assert Episode.objects.filter(state="done").count() == 100


def test_what_a_dead_attempt_left_running_is_lost_until_its_events_come(attempt):
    open_id, done_id = uuid.uuid4(), uuid.uuid4()
    record(attempt, make_event(open_id, "started", **STARTED))
    record(attempt, *whole_life(done_id))
    assert abandon_open(attempt.run_id, attempt.number) == 1
    lost = Episode.objects.get(pk=open_id)
    assert (lost.state, lost.termination, lost.score) == ("aborted", "infra_lost", None)
    late = record(attempt, make_event(open_id, "finished", **FINISHED), make_event(open_id, "graded", **GRADED))
    assert (late.state, late.termination, late.score) == ("done", "finished", 1.0)


def test_a_label_needs_words(attempt, owner):
    episode = record(attempt, make_event(uuid.uuid4(), "started", **STARTED))
    assert label_episode(owner, episode, " reward hack ", "").name == "reward hack"
    with pytest.raises(ValueError, match="both are blank"):
        label_episode(owner, episode, " ", "")


EVENT = st.one_of(
    st.tuples(st.just("started"), st.just(0), st.just(STARTED)),
    st.tuples(st.just("finished"), st.just(0), st.sampled_from(list(Termination)).map(lambda end: {**FINISHED, "termination": end.value})),
    st.tuples(st.just("graded"), st.integers(0, 2), st.sampled_from([None, 0.0, 1.0]).map(lambda score: {**GRADED, "score": score})),
    st.tuples(st.just("trained"), st.just(0), st.just(TRAINED)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, min_size=1, max_size=5, unique_by=lambda event: event[:2]), st.randoms())
def test_order_and_repetition_never_matter(attempt, events, random):
    one, two = uuid.uuid4(), uuid.uuid4()
    record(attempt, *(make_event(one, kind, ordinal, **data) for kind, ordinal, data in events))
    shuffled = events + events
    random.shuffle(shuffled)
    for kind, ordinal, data in shuffled:
        record(attempt, make_event(two, kind, ordinal, **data))
    assert columns(Episode.objects.get(pk=one)) == columns(Episode.objects.get(pk=two))
