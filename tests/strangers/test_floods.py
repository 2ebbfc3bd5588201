"""What a runner may send without end: the longest and strangest texts are stored, and none of them stops the delivery of the rest."""

import random
import uuid

import pytest

from controlplane.episodes import selectors
from controlplane.episodes.models import Episode, Turn
from tests.controlplane.factories import deliver, make_attempt, make_batch, make_event, make_run

pytestmark = pytest.mark.django_db
LONG = 5_000_000


def distinct_words() -> str:
    """More distinct words than Postgres puts into one search vector."""
    draw = random.Random(1)
    return " ".join(f"{draw.getrandbits(40):x}" for _ in range(LONG // 11))


TEXTS = {
    "distinct words": distinct_words,
    "one word": lambda: "x" * LONG,
    "one line of blanks": lambda: " " * LONG,
    "control characters": lambda: "a\0b\x1b[2Jc\u202ed",
}


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_a_turn_of_any_length_is_stored_and_found_by_its_beginning(kind, team, settings, tmp_path, client):
    settings.ASSAY_STORAGE = tmp_path
    attempt, key = make_attempt(make_run(team)), uuid.uuid4()
    text = "needle " + TEXTS[kind]()
    turn = {"index": 0, "role": "assistant", "author": "student", "text": text}
    events = [make_event(key, "started", task="t", step=1), make_event(key, "turn", **turn)]
    answer = deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]}, episodes=events))
    assert answer.status_code == 200, answer.content
    assert len(Turn.objects.get(episode=key).text) >= len(text) - 3
    found = selectors.filter_episodes(Episode.objects.all(), selectors.Filter(search="needle"))
    assert [episode.pk for episode in found] == [key]
