"""Schedules, clipping, masters in float32, and the step that is not taken."""

import math

import pytest
import torch
from torch.nn import Parameter

from runner.contract.run_config import Optimizer
from runner.learning.optimizer import MasterAdamW, learning_rate


def rates(schedule, warmup, total=10):
    config = Optimizer(learning_rate=1.0, schedule=schedule, warmup_steps=warmup)
    return [learning_rate(config, step, total) for step in range(total)]


def test_warm_up_rises_linearly_to_the_peak():
    assert rates("constant", 4)[:6] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_linear_would_be_zero_one_step_after_the_last():
    assert rates("linear", 0) == pytest.approx([1 - step / 10 for step in range(10)])
    assert learning_rate(Optimizer(learning_rate=1.0, schedule="linear"), 10, 10) == 0


def test_cosine_is_half_way_down_in_the_middle():
    expected = [0.5 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    assert rates("cosine", 2)[2:] == pytest.approx(expected)


def test_a_stage_shorter_than_its_warm_up_keeps_rising():
    assert rates("cosine", 20)[-1] == pytest.approx(0.5)


def test_clipping_scales_to_the_global_norm():
    parameters = {"a": Parameter(torch.zeros(2)), "b": Parameter(torch.zeros(2, 2))}
    optimizer = MasterAdamW(parameters, Optimizer(max_grad_norm=1.0))
    parameters["a"].grad = torch.tensor([3.0, 0.0])
    parameters["b"].grad = torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    optimizer.collect()
    kept = [parameter.grad for parameter in parameters.values()]
    norm, applied = optimizer.step(0.1)
    assert (norm, applied) == (5.0, True)
    assert kept[0].tolist() == pytest.approx([0.6, 0.0], abs=1e-5) and kept[1][0, 1].item() == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_moves_nothing(value):
    parameter = Parameter(torch.ones(3))
    optimizer = MasterAdamW({"a": parameter}, Optimizer(learning_rate=0.1))
    parameter.grad = torch.tensor([1.0, value, 1.0])
    optimizer.collect()
    norm, applied = optimizer.step(0.1)
    assert not applied and not math.isfinite(norm)
    assert parameter.tolist() == [1, 1, 1] and parameter.grad is None
    parameter.grad = torch.ones(3)
    optimizer.collect()
    assert optimizer.step(0.1)[1] and (parameter < 1).all()


def test_one_step_equals_adamw_by_hand():
    config = Optimizer(weight_decay=0.1, max_grad_norm=100.0, epsilon=1e-8)
    parameter = Parameter(torch.tensor([[2.0]]))
    optimizer = MasterAdamW({"w": parameter}, config)
    parameter.grad = torch.tensor([[0.5]])
    optimizer.collect()
    optimizer.step(0.01)
    assert parameter.item() == pytest.approx(2.0 * (1 - 0.01 * 0.1) - 0.01 * 0.5 / (0.5 + 1e-8), abs=1e-6)


def test_vectors_do_not_decay():
    parameter = Parameter(torch.tensor([2.0]))
    optimizer = MasterAdamW({"norm": parameter}, Optimizer(weight_decay=0.5))
    parameter.grad = torch.zeros(1)
    optimizer.collect()
    optimizer.step(0.1)
    assert parameter.item() == 2.0


def test_small_updates_of_a_bfloat16_weight_add_up():
    """A rate of 1e-4 is below half a bfloat16 step at 1.0: without masters the weight would never move."""
    parameter = Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterAdamW({"w": parameter}, Optimizer())
    for _ in range(100):
        parameter.grad = torch.ones_like(parameter)
        optimizer.collect()
        optimizer.step(1e-4)
    assert parameter.float().mean().item() == pytest.approx(0.99, abs=0.004)
    assert optimizer.masters["w"].mean().item() == pytest.approx(0.99, abs=1e-4)


def test_bfloat16_gradients_are_summed_in_float32():
    parameter = Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW({"w": parameter}, Optimizer(max_grad_norm=1e9))
    for value in (256.0, 1.0, 1.0):
        parameter.grad = torch.tensor([value], dtype=torch.bfloat16)
        optimizer.collect()
    assert optimizer.step(0.0)[0] == 258.0


def test_state_of_other_parameters_is_refused():
    first = MasterAdamW({"a": Parameter(torch.zeros(2))}, Optimizer())
    second = MasterAdamW({"b": Parameter(torch.zeros(2))}, Optimizer())
    with pytest.raises(ValueError, match="not those of this model"):
        second.load_state(first.state())
