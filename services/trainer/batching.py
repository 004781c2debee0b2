"""From trajectories to padded micro-batches, and from logits to the log-probs of sampled tokens.

Owns row order, padding and the token budget. Guarantees that the order is a function of the batch alone, that padding
changes no number (rows are padded on the right and attention is causal, so no real token sees a pad), and that a
missing log-prob is an error and not a zero.

Shapes: `B` rows, `T` tokens of the longest row, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.common.errors import InvalidInputError
from services.trainer.backend.port import TrainingRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from services.common.types import Group, TokenRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows of one forward pass, padded on the right."""

    token_ids: Tensor
    """`[B, T]` int64."""
    mask: Tensor
    """`[B, T]` bool, true where the token was sampled."""
    old_logprobs: Tensor
    """`[B, T]` float32, log-probs the tokens were sampled with."""
    advantages: Tensor
    """`[B, 1]` float32, one per row."""
    indices: tuple[int, ...]
    """Position of each row in the batch."""


def training_rows(groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> list[TrainingRow]:
    """Give every row of every trajectory the advantage of its trajectory.

    Args:
        groups: the batch, in order of sequence.
        advantages: one list per group, one number per trajectory.

    Returns:
        Rows in order of group, member and row.
    """
    return [
        TrainingRow(row=row, advantage=advantage)
        for group, group_advantages in zip(groups, advantages, strict=True)
        for trajectory, advantage in zip(group.trajectories, group_advantages, strict=True)
        for row in trajectory.rows
    ]


def plan_micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[tuple[int, ...]]:
    """Split rows so that each padded micro-batch stays within the token budget.

    Rows of like length go together, which keeps padding small; ties keep their order. A row longer than the budget
    gets a micro-batch of its own.

    Args:
        lengths: tokens of each row.
        max_tokens: bound of rows times longest row.

    Returns:
        Row positions of each micro-batch.
    """
    plan: list[tuple[int, ...]] = []
    current: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # Lengths fall, so the first row of a micro-batch is its longest.
        if current and (len(current) + 1) * lengths[current[0]] > max_tokens:
            plan.append(tuple(current))
            current = []
        current.append(index)
    if current:
        plan.append(tuple(current))
    return plan


def collate(batch: Sequence[TrainingRow], indices: Sequence[int], *, device: torch.device) -> MicroBatch:
    """Pad the chosen rows into tensors.

    Args:
        batch: the whole batch.
        indices: which rows.
        device: where the tensors go.

    Returns:
        The micro-batch.
    """
    chosen = [batch[index] for index in indices]
    longest = max(len(item.row.token_ids) for item in chosen)
    # Pads are token 0, whatever that is: nothing real attends to them.
    token_ids = np.zeros((len(chosen), longest), dtype=np.int64)
    mask = np.zeros((len(chosen), longest), dtype=np.bool_)
    old_logprobs = np.zeros((len(chosen), longest), dtype=np.float32)
    for position, item in enumerate(chosen):
        length = len(item.row.token_ids)
        token_ids[position, :length] = item.row.token_ids
        mask[position, :length] = item.row.loss_mask
        old_logprobs[position, :length] = item.row.logprobs
    advantages = np.array([[item.advantage] for item in chosen], dtype=np.float32)
    return MicroBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        mask=torch.from_numpy(mask).to(device),
        old_logprobs=torch.from_numpy(old_logprobs).to(device),
        advantages=torch.from_numpy(advantages).to(device),
        indices=tuple(indices),
    )


def check_rows(rows: Sequence[TokenRow], *, vocab_size: int, max_context_tokens: int) -> int:
    """Refuse rows that no step may see, before anything is computed.

    Args:
        rows: the rows of a batch.
        vocab_size: ids must be below it.
        max_context_tokens: longest row the model accepts.

    Returns:
        Number of sampled tokens over all rows, >= 1.

    Raises:
        InvalidInputError: a row is malformed, or no token was sampled at all.
    """
    num_sampled = 0
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        sampled = row.loss_mask.astype(bool)
        if len(row.loss_mask) != length or len(row.logprobs) != length:
            msg = f"row {index} has {length} ids, {len(row.loss_mask)} mask values and {len(row.logprobs)} log-probs"
        elif length > max_context_tokens:
            msg = f"row {index} has {length} tokens; the model's context is {max_context_tokens}"
        elif length and (int(row.token_ids.min()) < 0 or int(row.token_ids.max()) >= vocab_size):
            msg = f"row {index} has a token id outside 0..{vocab_size - 1}"
        elif length and sampled[0]:
            msg = f"row {index} says that its first token was sampled; there is nothing to condition it on"
        elif not np.isfinite(row.logprobs[sampled]).all():
            msg = f"row {index} has a sampled token without a finite log-prob"
        else:
            num_sampled += int(sampled.sum())
            continue
        raise InvalidInputError(msg)
    if num_sampled == 0:
        raise InvalidInputError(f"the batch of {len(rows)} rows has no sampled token; nothing can be learnt from it")
    return num_sampled


def sampled_logprobs(logits: Tensor, token_ids: Tensor, *, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute log-prob and entropy at the sampled places, in float32, at the temperature that sampled.

    Only the sampled places are normalised: the rest never enters, so it cannot leak, and a large vocabulary is not
    blown up to float32 for a long prompt. `top_p` and `top_k` are not applied: with their defaults both sides agree.

    Args:
        logits: `[B, S, V]`, scores of the last `S` positions of the micro-batch, `S <= T`.
        token_ids: `[B, T]`.
        mask: `[B, T]`, true where the token was sampled, false at position 0. Every true place must have its
            predecessor among the last `S` positions.
        temperature: sampling temperature, > 0.

    Returns:
        Log-probs `[B, T]` with gradient and entropies `[B, T]` without; both are 0 where the mask is false.
    """
    rows, columns = mask.nonzero(as_tuple=True)
    offset = token_ids.shape[1] - logits.shape[1]
    chosen = logits[rows, columns - 1 - offset].float() / temperature
    log_probabilities = torch.log_softmax(chosen, dim=-1)
    picked = log_probabilities.gather(-1, token_ids[rows, columns].unsqueeze(-1)).squeeze(-1)
    logprobs = torch.zeros(mask.shape, dtype=torch.float32, device=logits.device).index_put((rows, columns), picked)
    with torch.no_grad():
        entropy = torch.zeros(mask.shape, dtype=torch.float32, device=logits.device)
        entropy[rows, columns] = -(log_probabilities.exp() * log_probabilities).nan_to_num(0.0).sum(dim=-1)
    return logprobs, entropy
