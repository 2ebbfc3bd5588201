import asyncio

import msgpack
import numpy as np
import pytest
import zstandard

from runner.contract.bank import Task
from runner.contract.episode import Author, Trace
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure, Grade, Observation, Step
from runner.policies.base import SamplingParams
from runner.policies.scripted import ScriptedPolicy
from runner.rollouts.episodes import Job
from runner.rollouts.groups import training_orders
from runner.rollouts.turns import TurnLoop
from runner.rollouts.workflow import GroupWorkflow
from tests.runner.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id
TASKS = {key: Task(key=key, split="train", payload={"question": f"which {key}"}) for key in ("a", "b")}
ANSWER = TOKENIZER.encode("B", add_special_tokens=False)


class FakeEnvironment:
    """One question, one answer, 1.0 for B. `script` replaces methods by what they do instead."""

    closed = 0

    def __init__(self, **script):
        self.script, self.seed, self.answer = script, None, None

    async def _do(self, name, *arguments):
        if name in self.script:
            return await self.script[name](*arguments)

    async def start(self, task, seed):
        self.seed = seed
        return await self._do("start") or Observation([{"role": "user", "content": task.payload["question"]}])

    async def step(self, action):
        self.answer = action
        return await self._do("step", action) or Step(done=True)

    async def grade(self):
        return await self._do("grade") or Grade(float(self.answer.strip() == "B"), parsed=True, grader="exact")

    async def close(self):
        FakeEnvironment.closed += 1
        await self._do("close")


def run(make, policy=None, sampling=SamplingParams(max_new_tokens=4), max_length=64):
    FakeEnvironment.closed = 0
    policy = policy or ScriptedPolicy(lambda prompt, seed: [*ANSWER, END], stop_tokens=[END])
    orders = training_orders(GroupWorkflow(["a", "b"], 4, 2, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    made = []

    def make_environment():
        made.append(make(len(made)))
        return made[-1]

    loop = TurnLoop(policy, TOKENIZER, TASKS, make_environment, max_length=max_length, worker="worker-0")
    batch = asyncio.run(loop.run(Job(tuple(orders), sampling), 5))
    assert FakeEnvironment.closed == len(made) == 4, "every environment is closed"
    assert [outcome.order for outcome in batch.outcomes] == orders
    return batch.outcomes, made


def failing(error):
    async def fail(*_):
        raise error

    return fail


def only_second(**script):
    return lambda number: FakeEnvironment(**(script if number == 1 else {}))


def test_a_finished_episode_carries_tokens_authors_and_grade():
    outcomes, made = run(lambda number: FakeEnvironment())
    for outcome in outcomes:
        sample = outcome.sample
        assert (outcome.termination, sample.reward, sample.parsed, sample.policy_version) == (Termination.FINISHED, 1.0, True, 5)
        assert (
            [turn.role for turn in outcome.turns] == ["user", "assistant"] and outcome.turns[1].text == "B" and outcome.turns[1].tokens == 2
        )
        prompt = sample.token_ids[: sample.prompt_length].tolist()
        assert TOKENIZER.decode(prompt, skip_special_tokens=True) == TASKS[outcome.order.task].payload["question"]
        special = np.isin(sample.token_ids, TOKENIZER.all_special_ids)
        expected = np.where(special, Author.TEMPLATE, Author.ENVIRONMENT)
        expected[sample.prompt_length :] = Author.STUDENT
        assert (sample.author == expected).all() and (sample.loss_mask == (expected == Author.STUDENT)).all()
    assert made[0].seed == made[1].seed != made[2].seed


def test_blobs_hold_the_trace_and_one_text_a_token():
    (outcome, *_), _ = run(lambda number: FakeEnvironment())
    columns = Trace.open(outcome.sampled).read()
    assert (columns["token_id"] == outcome.sample.token_ids).all() and (columns["author"] == outcome.sample.author).all()
    texts = msgpack.unpackb(zstandard.decompress(outcome.token_texts))
    assert len(texts) == outcome.sample.total_length and texts[-1] == "<|im_end|>" and "".join(texts[1:-4]) == f"which {outcome.order.task}"


FAILURES = [
    ("start", EnvironmentFailure(Termination.ENV_BAD_TASK, "no key"), Termination.ENV_BAD_TASK),
    ("start", RuntimeError("boom"), Termination.ENV_CRASH),
    ("start", MemoryError(), Termination.ENV_OOM),
    ("start", TimeoutError(), Termination.ENV_TIMEOUT),
    ("step", EnvironmentFailure(Termination.REPLAY_MISMATCH, "differs"), Termination.REPLAY_MISMATCH),
    ("step", ValueError("boom"), Termination.ENV_CRASH),
    ("grade", ValueError("boom"), Termination.VERIFIER_ERROR),
    ("grade", TimeoutError(), Termination.VERIFIER_TIMEOUT),
]


@pytest.mark.parametrize("where, error, termination", FAILURES)
def test_a_failure_ends_its_own_episode_with_a_reason_and_no_reward(where, error, termination):
    outcomes, _ = run(only_second(**{where: failing(error)}))
    failed = outcomes[1]
    assert failed.termination is termination and failed.sample.reward is None and failed.error
    assert [outcome.termination for index, outcome in enumerate(outcomes) if index != 1] == [Termination.FINISHED] * 3


def test_a_hanging_environment_is_given_up(monkeypatch):
    monkeypatch.setattr("runner.rollouts.turns.STEP_SECONDS", 0.05)
    monkeypatch.setattr("runner.rollouts.turns.GRADE_SECONDS", 0.05)

    async def hang(*_):
        await asyncio.sleep(60)

    outcomes, _ = run(only_second(step=hang, close=hang))
    assert outcomes[1].termination is Termination.ENV_TIMEOUT
    outcomes, _ = run(only_second(grade=hang))
    assert outcomes[1].termination is Termination.VERIFIER_TIMEOUT


def test_a_grader_is_asked_once_more():
    asked = []

    async def flaky():
        asked.append(1)
        if len(asked) == 1:
            raise OSError("busy")
        return Grade(1.0, parsed=True)

    outcomes, _ = run(only_second(grade=flaky))
    assert (
        outcomes[1].termination is Termination.FINISHED and outcomes[1].sample.reward == 1.0 and len(asked) == 2 and not outcomes[1].error
    )


def test_a_grade_without_a_score_is_missing_not_zero():
    async def undecided():
        return Grade(None, reason="no reward file")

    outcomes, _ = run(only_second(grade=undecided))
    assert (
        outcomes[1].termination is Termination.VERIFIER_ERROR
        and outcomes[1].sample.reward is None
        and "no reward file" in outcomes[1].error
    )


def test_an_answer_that_cannot_be_read_is_a_graded_zero():
    async def unreadable():
        return Grade(0.0, parsed=False, termination=Termination.PARSE_FAILED)

    outcomes, _ = run(only_second(grade=unreadable))
    assert outcomes[1].termination is Termination.PARSE_FAILED and outcomes[1].sample.reward == 0.0 and outcomes[1].sample.parsed is False


def test_a_response_at_the_cap_is_graded_all_the_same():
    policy = ScriptedPolicy(lambda prompt, seed: [*ANSWER, 50, 51, 52, 53, 54], stop_tokens=[END])
    outcomes, _ = run(lambda number: FakeEnvironment(), policy)
    assert {outcome.termination for outcome in outcomes} == {Termination.MAX_RESPONSE_LENGTH_EXCEEDED}
    assert {outcome.sample.reward for outcome in outcomes} == {0.0} and {outcome.sample.response_length for outcome in outcomes} == {4}


def test_a_prompt_beyond_the_context_never_reaches_the_policy():
    outcomes, _ = run(lambda number: FakeEnvironment(), max_length=5)
    assert {outcome.termination for outcome in outcomes} == {Termination.MAX_RESPONSE_LENGTH_EXCEEDED}
    assert all(outcome.sample.reward is None and not outcome.sample.loss_mask.any() and outcome.error for outcome in outcomes)


def test_a_failing_policy_is_a_policy_error_of_every_episode_it_was_asked_for():
    def fail(prompt, seed):
        raise RuntimeError("out of memory")

    outcomes, _ = run(lambda number: FakeEnvironment(), ScriptedPolicy(fail))
    assert {outcome.termination for outcome in outcomes} == {Termination.POLICY_ERROR}
    assert all("out of memory" in outcome.error and outcome.sample.reward is None for outcome in outcomes)


def test_several_turns_grow_one_sequence_and_each_turn_draws_anew():
    seeds = []

    async def twice(action):
        return (
            Step(Observation([{"role": "user", "content": "again"}]))
            if len(seeds) < 8 and action == "B" and len(seeds) <= 4
            else Step(done=True)
        )

    def script(prompt, seed):
        seeds.append(seed)
        return [*ANSWER, END]

    outcomes, _ = run(lambda number: FakeEnvironment(step=twice), ScriptedPolicy(script, stop_tokens=[END]))
    assert len(set(seeds)) == len(seeds) == 8 and {seed[-1] for seed in seeds} == {0, 1}
    assert {outcome.sample.turns for outcome in outcomes} == {2}
    assert [turn.role for turn in outcomes[0].turns] == ["user", "assistant", "user", "assistant"]
    assert outcomes[0].sample.response_length == 4


def talkative(**script):
    """Shows twenty words after every reply, for ever."""

    async def go_on(action):
        return Step(Observation([{"role": "user", "content": "water " * 20}]))

    return lambda number: FakeEnvironment(step=go_on, **script)


def test_a_context_that_fills_up_ends_the_episode_graded_and_fits_the_model():
    outcomes, _ = run(talkative(), max_length=64)
    for outcome in outcomes:
        assert outcome.termination is Termination.MAX_RESPONSE_LENGTH_EXCEEDED and outcome.sample.reward == 1.0 and not outcome.error
        assert outcome.sample.longest_sequence < 64 and outcome.sample.author[-1] == Author.STUDENT


def test_an_environment_may_shorten_the_history_and_go_on():
    class Condensing(FakeEnvironment):
        summaries = 0

        async def step(self, action):
            self.answer = action
            return Step(done=True) if self.summaries else Step(Observation([{"role": "user", "content": "water " * 60}]))

        async def condense(self, ask, history):
            self.summaries += 1
            told = await ask([{"role": "user", "content": "so far"}])
            assert history[-1]["content"].startswith("water") and await ask([{"role": "user", "content": "water " * 99}]) is None
            return [{"role": "user", "content": f"go on after {told}"}]

    outcomes, _ = run(lambda number: Condensing(), max_length=64)
    for outcome in outcomes:
        assert outcome.termination is Termination.FINISHED and len(outcome.sample.forks) == 2 and outcome.sample.longest_sequence < 64
        assert [turn.text.split()[0] for turn in outcome.turns if turn.role == "user"] == ["which", "water", "so", "go"]


def test_a_reply_that_was_cut_is_answered_where_the_environment_can():
    cuts = []

    class Patient(FakeEnvironment):
        async def cut(self, action):
            cuts.append(action)
            return Step(Observation([{"role": "user", "content": "shorter"}]))

    def script(prompt, seed):
        return [*ANSWER, END] if seed[-1] else [*ANSWER, *ANSWER, *ANSWER, *ANSWER, *ANSWER]

    outcomes, _ = run(lambda number: Patient(), ScriptedPolicy(script, stop_tokens=[END]))
    assert {outcome.termination for outcome in outcomes} == {Termination.FINISHED} and len(cuts) == 4
    assert {outcome.sample.reward for outcome in outcomes} == {1.0}
