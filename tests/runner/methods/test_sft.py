"""SFT: completions are trained, prompts are not, and step k always draws the same batch."""

import numpy as np
import pytest

from runner.contract.bank import Demonstration
from runner.contract.run_config import SftStage
from runner.methods.base import SequenceResult
from runner.methods.sft import Sft
from tests.runner.tiny_models import tiny_tokenizer

DEMONSTRATIONS = [Demonstration(key=f"q{index}", kind="answer", prompt=f"which planet {index}?", completion="B") for index in range(5)]
DEMONSTRATIONS += [Demonstration(key=f"s{index}", kind="statement", completion=f"iron is a metal {index}") for index in range(5)]
TOKENIZER = tiny_tokenizer()


def sft(first_step=1, seed=0, demonstrations=DEMONSTRATIONS, max_length=64, **settings):
    return Sft(
        SftStage(**{"batch_size": 4, **settings}), demonstrations, TOKENIZER, seed=seed, first_step=first_step, max_length=max_length
    )


def drawn(method, step):
    return [tuple(item.token_ids) for item in method.plan(step).sequences]


def test_only_the_completion_and_the_end_are_trained():
    (item, *_) = sft(kinds=["answer"]).plan(1).sequences
    assert TOKENIZER.decode(item.token_ids[item.mask]) == "B<|im_end|>"


def test_without_a_prompt_every_predicted_token_is_trained():
    (item, *_) = sft(kinds=["statement"]).plan(1).sequences
    assert item.mask.tolist() == [False] + [True] * (len(item.mask) - 1)


def test_weights_are_the_mean_over_the_batch_s_loss_tokens():
    plan = sft().plan(1)
    count = sum(item.mask.sum() for item in plan.sequences)
    for item in plan.sequences:
        np.testing.assert_allclose(item.weight, item.mask / count, rtol=1e-6)


def test_a_step_draws_the_same_batch_however_often_and_late_it_is_asked():
    first, resumed = sft(), sft()
    history = [drawn(first, step) for step in range(1, 8)]
    assert drawn(resumed, 7) == history[6] and drawn(resumed, 3) == history[2]
    assert drawn(sft(seed=1), 1) != history[0]


def test_an_epoch_uses_every_demonstration_once():
    method = sft(batch_size=5)
    assert len({*drawn(method, 1), *drawn(method, 2)}) == 10


def test_steps_count_from_the_stage_s_first():
    assert drawn(sft(first_step=11), 11) == drawn(sft(first_step=1), 1)


def test_unknown_kinds_are_refused_with_the_offered_ones():
    with pytest.raises(ValueError, match=r"stages.kinds: \['poem'\] selects no demonstration.*'answer', 'statement'"):
        sft(kinds=["poem"])


def test_a_long_demonstration_is_refused():
    with pytest.raises(ValueError, match="model.max_length: a demonstration has"):
        sft(max_length=8)


def test_the_loss_is_the_mean_cross_entropy():
    method = sft()
    plan = method.plan(1)
    results = [
        SequenceResult(
            *(np.full(item.mask.sum(), value, np.float32) for value in (-2.0, 0.5)), {"loss": np.full(item.mask.sum(), 2.0, np.float32)}
        )
        for item in plan.sequences
    ]
    metrics, trained = method.report(plan, results)
    assert metrics["sft/loss"] == pytest.approx(2.0) and metrics["actor/entropy"] == pytest.approx(0.5)
    assert metrics["sft/tokens"] == sum(item.mask.sum() for item in plan.sequences) and trained == []
