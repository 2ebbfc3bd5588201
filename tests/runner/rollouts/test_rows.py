"""Turn-level rows: what step-level credit knows of each turn, under both ways of giving a turn its context."""

import pytest

from runner.environments.base import Observation, Situation, Step
from tests.runner.rollouts.test_turns import TOKENIZER, FakeEnvironment, run


class Laboratory(FakeEnvironment):
    """Three steps with rewards; the second action means nothing. `alone`: every turn has a prompt of its own."""

    def __init__(self, alone):
        super().__init__()
        self.alone, self.count = alone, 0

    def _observed(self):
        text = f"you are at {self.count}"
        whole = [{"role": "user", "content": f"room {self.count} go"}]
        return Observation(
            [{"role": "user", "content": text}], whole if self.alone else None, Situation(text, "a room", "nothing", 10.0 * self.count)
        )

    async def start(self, task, seed):
        return self._observed()

    async def step(self, action):
        self.answer, self.count = action, self.count + 1
        told = {"info": {"action": "wait"}, "valid": self.count != 2, "reward": 0.5 * self.count}
        return Step(done=True, **told) if self.count == 3 else Step(self._observed(), **told)


@pytest.mark.parametrize("alone", [True, False])
def test_a_row_a_turn_names_its_tokens_its_state_and_its_reward(alone):
    for outcome in run(lambda number: Laboratory(alone))[0]:
        rows = outcome.sample.rows
        assert [(row.turn, row.reward, row.valid) for row in rows] == [(0, 0.5, True), (1, 1.0, False), (2, 1.5, True)]
        assert [row.situation.score for row in rows] == [0.0, 10.0, 20.0], "the state before the action"
        for row in rows:
            assert TOKENIZER.decode(outcome.sample.token_ids[row.start : row.stop], skip_special_tokens=True) == "B"
            assert outcome.sample.loss_mask[row.start : row.stop].all()
        assert sum(row.stop - row.start for row in rows) == outcome.sample.loss_mask.sum()


def test_a_prompt_of_its_own_begins_a_sequence_that_knows_nothing_of_the_turns_before():
    (outcome, *_), _ = run(lambda number: Laboratory(True))
    sample = outcome.sample
    assert len(sample.spans) == 3
    for number, (span, row) in enumerate(zip(sample.spans, sample.rows, strict=True)):
        text = TOKENIZER.decode(sample.token_ids[span])
        assert f"room {number} go" in text and text.count("B") == 1
        assert span.start < row.start and row.stop == span.stop
    (grown, *_), _ = run(lambda number: Laboratory(False))
    assert len(grown.sample.spans) == 1 and "forks" not in outcome.facts, "a chosen context is no template that failed to accumulate"


def test_the_transcript_shows_what_the_environment_told_beside_the_text():
    (outcome, *_), _ = run(lambda number: Laboratory(True))
    shown, said, *_ = outcome.turns
    assert (shown.text, shown.facts["inventory"], shown.facts["score"]) == ("you are at 0", "nothing", 0.0)
    assert (said.author, said.reward, said.facts) == ("student", 0.5, {"action": "wait"})


def test_an_own_prompt_that_does_not_fit_ends_the_episode_without_a_row():
    class Verbose(Laboratory):
        def _observed(self):
            seen = super()._observed()
            long = [{"role": "user", "content": "word " * (200 if self.count else 1)}]
            return Observation(seen.messages, long, seen.situation)

    (outcome, *_), _ = run(lambda number: Verbose(True))
    assert str(outcome.termination) == "max_response_length_exceeded" and len(outcome.sample.rows) == 1
    assert outcome.sample.longest_sequence <= 64
