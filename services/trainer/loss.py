"""The policy loss and what it says of itself.

Owns the formula on tensors. Guarantees that the sum over micro-batches does not depend on the split (the denominator is
given, not counted here) and that nothing at a masked place, NaN and inf included, reaches the value or a gradient.

Shapes: `[B, T]`, or any other shape that all arguments share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before `exp`, as in verl: beyond it float32 loses the gradient anyway."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTerms:
    """Loss of one micro-batch and the sums its metrics are made of; sums add up over micro-batches."""

    loss: Tensor
    """Scalar to call `backward` on: this micro-batch's share of the batch's loss."""
    clipped_sum: Tensor
    """Number of sampled tokens whose ratio was clipped."""
    kl_sum: Tensor
    """Sum of the k3 estimates over sampled tokens."""
    ratio_sum: Tensor
    """Sum of the ratios over sampled tokens."""
    ratio_max: Tensor
    """Largest ratio; 0 without sampled tokens."""


def ppo_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    denominator: float,
) -> LossTerms:
    """Compute the clipped surrogate loss, averaged over all sampled tokens of the batch.

    `-sum(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)) / denominator` with `r = exp(logprobs - old_logprobs)`:
    Schulman et al. 2017, PPO (arXiv:1707.06347), eq. 7; separate bounds and token mean: Yu et al. 2025, DAPO
    (arXiv:2503.14476), eq. 8. The old policy is the one that sampled: its log-probs came with the tokens.
    KL(old || new) is estimated by k3, `r - 1 - log r`: Schulman 2020, "Approximating KL divergence".

    Args:
        logprobs: log-probabilities under the current weights, with gradient.
        old_logprobs: log-probabilities the tokens were sampled with.
        advantages: advantage of each token, broadcastable to `logprobs`.
        mask: true where the token was sampled.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far it may rise above 1.
        denominator: sampled tokens of the whole batch, over all micro-batches.

    Returns:
        The loss with gradient, and the metric sums without.
    """
    # Cleaning before `exp` matters: where() after it would still multiply a zero gradient by inf, which is NaN.
    mask = mask.bool()
    log_ratio = torch.where(mask, logprobs, 0.0) - torch.where(mask, old_logprobs, 0.0)
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    gain = torch.where(mask, advantages, 0.0)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    surrogate = torch.minimum(ratio * gain, clipped_ratio * gain)
    loss = -surrogate.sum() / denominator
    with torch.no_grad():
        is_clipped = mask & (clipped_ratio * gain < ratio * gain)
        sampled_ratio = torch.where(mask, ratio, 0.0)
        k3 = torch.where(mask, ratio - 1.0 - log_ratio, 0.0)
        return LossTerms(
            loss=loss,
            clipped_sum=is_clipped.sum(),
            kl_sum=k3.sum(),
            ratio_sum=sampled_ratio.sum(),
            ratio_max=sampled_ratio.max() if sampled_ratio.numel() else sampled_ratio.new_zeros(()),
        )
