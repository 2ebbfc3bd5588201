"""The pages of episodes: filters in the URL, hostile text made harmless, a missing reward never 0."""

import re
import uuid

import pytest
from django.urls import reverse

from controlplane.episodes.models import Episode, Turn
from tests.controlplane.factories import make_run

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m \u202eesrever"


@pytest.fixture
def run(team):
    return make_run(team)


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def make_episode(run, sample=0, **values) -> Episode:
    defaults = dict(attempt=1, state="done", step=3, group=2, sample=sample, task="quiz-1", domain="physics", termination="finished", score=1.0, parsed=True)
    return Episode.objects.create(run=run, **{**defaults, **values})


def page(browser, name, *args, **query) -> str:
    answer = browser.get(reverse(name, args=args), query)
    assert answer.status_code == 200, answer.content[:300]
    return answer.content.decode()


def test_an_empty_run_says_what_belongs_here(browser, run):
    assert "No episodes yet" in page(browser, "episodes", run.pk)


def test_a_missing_reward_is_called_missing_and_enters_no_mean(browser, run):
    make_episode(run, 0, score=None, termination="verifier_error")
    make_episode(run, 1, score=1.0)
    html = page(browser, "episodes", run.pk)
    assert "missing" in html and "1 graded, mean reward 1.000 over those" in html


def test_failed_ones_are_filtered(browser, run):
    make_episode(run, 0, task="good-task", group=1)
    make_episode(run, 1, task="bad-task", score=0.0, parsed=False, termination="parse_failed")
    html = page(browser, "episodes", run.pk, failed="true")
    assert "bad-task" in html and "good-task" not in html


@pytest.mark.parametrize("query", [{"first_step": "x"}, {"missing": "perhaps"}, {"cursor": "%%%"}, {"evaluation": "7"}])
def test_a_malformed_address_is_refused(browser, run, query):
    assert browser.get(reverse("episodes", args=[run.pk]), query).status_code == 400


def test_hostile_text_is_shown_and_does_nothing(browser, run):
    episode = make_episode(run, task=HOSTILE[:60])
    Turn.objects.create(episode=episode, index=0, role="assistant", author="student", text=HOSTILE)
    html = page(browser, "episode", episode.pk)
    assert "<script>alert" not in html and "&lt;script&gt;alert(1)" in html
    assert "\x1b" not in html.split('id="turns"')[1].split("</ol>")[0] and "⟨202E⟩" in html


def test_a_long_text_is_folded_and_whole(browser, run):
    episode = make_episode(run)
    Turn.objects.create(episode=episode, index=0, role="assistant", author="student", text="\n".join(f"line {n}" for n in range(500)))
    html = page(browser, "episode", episode.pk)
    assert "460 more lines" in html and "line 499" in html


def test_siblings_and_neighbours_are_linked(browser, run):
    first, second = make_episode(run, 0), make_episode(run, 1, score=0.0)
    html = page(browser, "episode", first.pk)
    assert reverse("episode-compare", args=[first.pk, second.pk]) in html
    assert 'rel="next"' in html and 'rel="prev"' not in html


def test_two_episodes_side_by_side(browser, run):
    first, second = make_episode(run, 0), make_episode(run, 1)
    Turn.objects.create(episode=first, index=0, role="assistant", author="student", text="the answer is A")
    Turn.objects.create(episode=second, index=0, role="assistant", author="student", text="the answer is B")
    html = page(browser, "episode-compare", first.pk, second.pk)
    assert "<del>A</del>" in html and "<ins>B</ins>" in html


@pytest.fixture
def long_episode(run):
    episode = make_episode(run)
    Turn.objects.bulk_create(Turn(episode=episode, index=n, role="assistant", author="student", text=f"turn {n}.") for n in range(250))
    return episode


def test_a_long_transcript_is_read_on(browser, long_episode):
    assert "turn 199." in page(browser, "episode-turns", long_episode.pk, after=39)
    assert "turn 249." not in page(browser, "episode-turns", long_episode.pk, after=39)
    last = page(browser, "episode-turns", long_episode.pk, after=199)
    assert "turn 249." in last and "Reading on" not in last


def test_a_page_opens_with_the_first_turns_and_asks_for_the_rest_at_once(browser, long_episode):
    html = page(browser, "episode", long_episode.pk)
    assert "turn 39." in html and "turn 40." not in html
    assert 'after=39" hx-trigger="load"' in html


def test_a_page_that_reads_itself_again_keeps_its_turns(browser, long_episode):
    html = browser.get(reverse("episode", args=[long_episode.pk]), headers={"X-Requested-With": "XMLHttpRequest"}).content.decode()
    assert "turn 199." in html and 'after=199" hx-trigger="revealed"' in html


def test_a_label_is_kept(browser, run):
    episode = make_episode(run)
    browser.post(reverse("episode-label", args=[episode.pk]), {"name": "format", "comment": "no letter"})
    assert "no letter" in page(browser, "episode", episode.pk)


def test_the_list_asks_the_same_number_of_queries_for_one_and_for_fifty(browser, run, django_assert_max_num_queries):
    for sample in range(50):
        make_episode(run, sample, id=uuid.uuid4())
    with django_assert_max_num_queries(26):
        page(browser, "episodes", run.pk)


def test_another_team_finds_nothing(client, outsider, run):
    client.force_login(outsider)
    assert client.get(reverse("episodes", args=[run.pk])).status_code == 404
    assert client.get(reverse("episode", args=[make_episode(run).pk])).status_code == 404


def test_tokens_that_nobody_counted_are_one_dash(browser, run):
    strip = r"<dt>Tokens</dt><dd>([^<]*)</dd>"
    bare, counted = make_episode(run, 0), make_episode(run, 1, prompt_tokens=12, response_tokens=0)
    assert re.search(strip, page(browser, "episode", bare.pk))[1] == "–"
    assert re.search(strip, page(browser, "episode", counted.pk))[1] == "12 + 0"
