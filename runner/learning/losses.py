"""Per-token losses: pure functions of equally long vectors [N], one entry per loss token.

`logprob` is the learner's and carries the gradient; everything else is constant. Sums over tokens are weighted
by the caller. Wherever a log-ratio d is exponentiated it is clamped to ±20 first: a single stray token must not
turn a batch into infinity, and a masked infinity would still make a NaN gradient.
"""

import torch
from torch import Tensor

from runner.contract.run_config import ClippedLoss, MaskedLoss

MAX_LOG_RATIO = 20.0

Diagnostics = dict[str, Tensor]


def ratio(log_ratio: Tensor) -> Tensor:
    """exp of the clamped log-ratio."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_loss(logprob: Tensor, sampler_logprob: Tensor, advantage: Tensor, config: ClippedLoss) -> tuple[Tensor, Diagnostics]:
    """PPO's clipped surrogate with dual clip and truncated importance weight, as in verl.

    r = exp(logprob − old); L = max(−A r, −A clip(r, 1 − low, 1 + high)); for A < 0 also at most −A · dual_clip.
    With an importance cap T, old is the learner's own log-prob before this update and L is multiplied by
    w = min(exp(old − sampler), T); without one, old is the sampler's and the clip alone bounds the mismatch.
    Diagnostics are 0/1 per token: `clipped` where the clip removed the gradient, `dual_clipped` where the dual clip did.
    """
    old = sampler_logprob if config.importance_cap is None else logprob.detach()
    change = ratio(logprob - old)
    free = -advantage * change
    clipped = -advantage * change.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = torch.maximum(free, clipped)
    diagnostics = {"clipped": (clipped > free).float(), "dual_clipped": torch.zeros_like(loss)}
    if config.dual_clip is not None:
        bound = -advantage * config.dual_clip
        active = (advantage < 0) & (loss > bound)
        loss = torch.where(active, bound, loss)
        diagnostics["dual_clipped"] = active.float()
    if config.importance_cap is not None:
        loss = loss * ratio(old - sampler_logprob).clamp(max=config.importance_cap)
    return loss, diagnostics


def masked_loss(logprob: Tensor, sampler_logprob: Tensor, advantage: Tensor, config: MaskedLoss) -> tuple[Tensor, Diagnostics]:
    """prime-rl's masked importance-weighted loss with a drift penalty against the sampling policy.

    With d = p − q and D = exp(p) − exp(q): the policy-gradient term −A · exp(d) is dropped when A > 0 and
    D > mask_high, or A ≤ 0 and D < −mask_low; drift_tau · d² stays for every token.
    Diagnostics: `clipped` is 1 where the term was dropped.
    """
    d = logprob - sampler_logprob
    difference = logprob.detach().exp() - sampler_logprob.exp()
    dropped = torch.where(advantage > 0, difference > config.mask_high, difference < -config.mask_low)
    policy = torch.where(dropped, 0.0, -config.advantage_tau * advantage * ratio(d))
    return policy + config.drift_tau * d.square(), {"clipped": dropped.float()}


def k3_penalty(logprob: Tensor, reference_logprob: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy ‖ reference) per token: exp(d) − d − 1 with d = reference − policy."""
    d = (reference_logprob - logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return d.exp() - d - 1


def cross_entropy(logprob: Tensor) -> Tensor:
    """Negative log-likelihood of each token."""
    return -logprob
