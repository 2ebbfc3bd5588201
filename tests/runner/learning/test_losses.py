"""Losses against hand-worked tokens and slow scalar loops, to 1e-6."""

import math

import pytest
import torch

from runner.contract.run_config import ClippedLoss, MaskedLoss
from runner.learning.losses import clipped_loss, cross_entropy, k3_penalty, masked_loss

LOG = math.log


def slow_clipped(p, q, a, config):
    old = q if config.importance_cap is None else p
    r = math.exp(max(-20, min(20, p - old)))
    loss = max(-a * r, -a * min(max(r, 1 - config.clip_low), 1 + config.clip_high))
    if a < 0 and config.dual_clip is not None:
        loss = min(loss, -a * config.dual_clip)
    weight = 1.0 if config.importance_cap is None else min(math.exp(max(-20, min(20, p - q))), config.importance_cap)
    return loss * weight


def slow_masked(p, q, a, config):
    d = p - q
    gap = math.exp(p) - math.exp(q)
    drop = gap > config.mask_high if a > 0 else gap < -config.mask_low
    policy = 0.0 if drop else -config.advantage_tau * a * math.exp(max(-20, min(20, d)))
    return policy + config.drift_tau * d * d


def random_tokens(count=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = -torch.rand(count, generator=generator) * 4
    q = (p + torch.randn(count, generator=generator)).clamp(max=-1e-3)
    return p, q, torch.randn(count, generator=generator)


@pytest.mark.parametrize(
    "config",
    [
        ClippedLoss(),
        ClippedLoss(importance_cap=None),
        ClippedLoss(importance_cap=None, dual_clip=None),
        ClippedLoss(clip_low=0.1, clip_high=0.28, importance_cap=None),
    ],
)
def test_clipped_equals_the_slow_reference(config):
    p, q, a = random_tokens()
    loss, _ = clipped_loss(p, q, a, config)
    expected = [slow_clipped(*values, config) for values in zip(p.tolist(), q.tolist(), a.tolist())]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("config", [MaskedLoss(), MaskedLoss(mask_low=0.05, mask_high=0.4, advantage_tau=0.5, drift_tau=0.1)])
def test_masked_equals_the_slow_reference(config):
    p, q, a = random_tokens(seed=1)
    loss, _ = masked_loss(p, q, a, config)
    expected = [slow_masked(*values, config) for values in zip(p.tolist(), q.tolist(), a.tolist())]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6, rel=1e-6)


def test_masked_loss_on_hand_made_tokens():
    """A>0 with D=+.25 is dropped and keeps its drift; A>0 with D=−.25 stays; A<0 with D=−.25 is dropped; A<0 with D=+.25 stays."""
    q = torch.tensor([0.25, 0.5, 0.5, 0.25]).log()
    p = torch.tensor([0.5, 0.25, 0.25, 0.5]).log()
    a = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, values = masked_loss(p, q, a, MaskedLoss(drift_tau=0.1))
    drift = 0.1 * LOG(2) ** 2
    assert loss.tolist() == pytest.approx([drift, -0.5 + drift, drift, 2.0 + drift], abs=1e-6)
    assert values["clipped"].tolist() == [1, 0, 1, 0]


def test_the_gradient_of_a_dropped_token_is_its_drift_alone():
    q = torch.tensor([0.25]).log()
    p = torch.tensor([0.5]).log().requires_grad_()
    masked_loss(p, q, torch.tensor([1.0]), MaskedLoss(drift_tau=0.1))[0].sum().backward()
    assert p.grad.item() == pytest.approx(2 * 0.1 * LOG(2), abs=1e-6)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [89.0, -89.0])
def test_a_huge_log_ratio_gives_finite_loss_and_gradient(advantage, gap):
    for function, config in ((masked_loss, MaskedLoss()), (clipped_loss, ClippedLoss(importance_cap=None)), (clipped_loss, ClippedLoss())):
        p = torch.tensor([-1.0 if gap > 0 else -90.0], requires_grad=True)
        loss, _ = function(p, p.detach() - gap, torch.tensor([advantage]), config)
        loss.sum().backward()
        assert torch.isfinite(loss).all() and torch.isfinite(p.grad).all()


def test_on_policy_gradient_is_minus_the_advantage():
    p = torch.tensor([-0.5, -1.5, -3.0], requires_grad=True)
    a = torch.tensor([1.0, -2.0, 0.5])
    clipped_loss(p, p.detach(), a, ClippedLoss())[0].sum().backward()
    assert p.grad.tolist() == pytest.approx((-a).tolist(), abs=1e-6)


def test_the_importance_weight_is_truncated():
    p = torch.tensor([-0.1, -1.0])
    q = torch.tensor([-3.0, -1.2])
    loss, _ = clipped_loss(p, q, torch.ones(2), ClippedLoss(importance_cap=2.0))
    assert loss.tolist() == pytest.approx([-2.0, -math.exp(0.2)], abs=1e-6)


def test_the_clip_marks_tokens_it_took_the_gradient_from():
    q = torch.zeros(4) - 2
    p = (q + torch.tensor([0.5, -0.5, 0.5, -0.5])).requires_grad_()
    loss, values = clipped_loss(p, q, torch.tensor([1.0, 1.0, -1.0, -1.0]), ClippedLoss(importance_cap=None, dual_clip=None))
    loss.sum().backward()
    assert values["clipped"].tolist() == [1, 0, 0, 1]
    assert (p.grad == 0).tolist() == [True, False, False, True]


def test_the_dual_clip_bounds_negative_advantages():
    p = torch.tensor([0.0], requires_grad=True)
    loss, values = clipped_loss(p, torch.tensor([-2.0]), torch.tensor([-1.0]), ClippedLoss(importance_cap=None, dual_clip=3.0))
    loss.sum().backward()
    assert loss.item() == 3.0 and p.grad.item() == 0.0 and values["dual_clipped"].item() == 1.0


def test_k3_is_zero_at_equality_and_positive_elsewhere():
    p = torch.tensor([-1.0, -1.0, -1.0])
    penalty = k3_penalty(p, p + torch.tensor([0.0, 0.5, -0.5]))
    assert penalty.tolist() == pytest.approx([0.0, math.exp(0.5) - 1.5, math.exp(-0.5) - 0.5], abs=1e-6)


def test_the_k3_gradient_pulls_towards_the_reference():
    p = torch.tensor([-1.0], requires_grad=True)
    k3_penalty(p, torch.tensor([-0.5])).sum().backward()
    assert p.grad.item() == pytest.approx(1 - math.exp(0.5), abs=1e-6)


def test_cross_entropy_is_the_negative_log_likelihood():
    assert cross_entropy(torch.tensor([-0.5, -2.0])).tolist() == [0.5, 2.0]
