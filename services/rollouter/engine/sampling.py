"""Turns logits into tokens with their log-probabilities, one independent random number per token.

Guarantees: a token's randomness is a hash of its request's seed and its position, so neighbours never change it; the
log-probability is that of the distribution the token was really drawn from.

Legend: `n` rows, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.rollouter.engine.randomness import uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSampling:
    """Sampling parameters of `n` rows, struct of arrays."""

    temperature: NDArray[np.float32]
    """`[n]`, >= 0; 0 is greedy."""
    top_p: NDArray[np.float32]
    """`[n]` in (0, 1]; 1 is off."""
    top_k: NDArray[np.int64]
    """`[n]`, >= 0; 0 is off."""
    seeds: NDArray[np.uint64]
    """`[n]` seeds of the requests."""
    positions: NDArray[np.int64]
    """`[n]` index that the new token will have in its sequence, prompt included."""


def sample(logits: torch.Tensor, rows: RowSampling) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw one token per row.

    Args:
        logits: `[n, V]` raw scores of the model.
        rows: how to sample each row.

    Returns:
        `[n]` tokens and `[n]` log-probabilities. A row whose logits hold NaN or +inf has a non-finite log-probability.
        Greedy rows have log-probability 0.
    """
    scores = logits.float()
    greedy = rows.temperature == 0.0
    if np.any(rows.temperature != 1.0):
        divisors = torch.from_numpy(np.where(greedy, np.float32(1.0), rows.temperature)).to(scores.device)
        scores = scores / divisors[:, None]
    if np.any(rows.top_k > 0) or np.any(rows.top_p < 1.0):
        scores = _truncate(scores, rows)
    probabilities = torch.softmax(scores, dim=-1)
    cdf = probabilities.cumsum(dim=-1, dtype=torch.float64)
    draws = torch.from_numpy(uniforms(rows.seeds, rows.positions)).to(cdf.device)
    targets = draws[:, None] * cdf[:, -1:]
    # The first entry above the target: never a token of probability zero.
    picked = torch.searchsorted(cdf, targets, right=True).clamp_(max=cdf.shape[-1] - 1)
    if greedy.any():
        best = scores.argmax(dim=-1, keepdim=True)
        picked = torch.where(torch.from_numpy(greedy).to(best.device)[:, None], best, picked)
    # Softmax is exact to float32's relative precision, so its logarithm is as good as log_softmax, and half the work.
    picked_logp = probabilities.gather(-1, picked).log_()
    # One transfer for both; float64 holds any token id exactly.
    both = torch.cat((picked.double(), picked_logp.double()), dim=-1).cpu().numpy()
    logprobs = both[:, 1].astype(np.float32)
    # A greedy token is drawn from a point distribution; a broken row must stay recognisable.
    logprobs = np.where(greedy & np.isfinite(logprobs), np.float32(0.0), logprobs)
    return both[:, 0].astype(np.int64), logprobs


def _truncate(scores: torch.Tensor, rows: RowSampling) -> torch.Tensor:
    """Set scores outside top-k, then outside the nucleus, to -inf. Ties with the last kept score are kept."""
    vocabulary = scores.shape[-1]
    device = scores.device
    ordered = scores.sort(dim=-1, descending=True).values
    top_k = np.where(rows.top_k > 0, np.minimum(rows.top_k, vocabulary), vocabulary)
    last_kept = torch.from_numpy(top_k - 1).to(device)[:, None]
    threshold = ordered.gather(-1, last_kept)
    if np.any(rows.top_p < 1.0):
        kept = ordered.masked_fill(ordered < threshold, -torch.inf)
        probabilities = torch.softmax(kept, dim=-1)
        mass_before = probabilities.cumsum(dim=-1, dtype=torch.float64) - probabilities
        top_p = torch.from_numpy(rows.top_p.astype(np.float64)).to(device)[:, None]
        # The most likely token always stays; rows without top-p keep whatever top-k left.
        inside = (mass_before < top_p) | (top_p >= 1.0)
        inside[:, 0] = True
        nucleus_end = inside.sum(dim=-1, keepdim=True) - 1
        threshold = torch.maximum(threshold, ordered.gather(-1, nucleus_end))
    return scores.masked_fill(scores < threshold, -torch.inf)
