"""The port between the training loop and whatever holds the weights.

Owns the names: what a step takes, what it says afterwards, what a snapshot and a resumable state are. The loop knows
only this file; `local` (one process) stands behind it, and a sharded backend can stand there too. Nothing here knows of
files, queues or versions: the checkpoint writes `BackendState`, the publisher sends `PolicyWeights`.

Shapes: `T` is the number of tokens of one row, prompt included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from services.common.types import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRow:
    """One sequence with the advantage of the trajectory that it belongs to."""

    row: TokenRow
    """The tokens, exactly as they were sampled."""
    advantage: float
    """Advantage of its trajectory; finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one optimiser step says of itself. Means are over the sampled tokens of the whole batch."""

    loss: float
    """Policy loss of the batch, before the step."""
    grad_norm: float
    """Global gradient norm before clipping."""
    learning_rate: float
    """Learning rate that was used."""
    clip_fraction: float
    """Share of sampled tokens whose ratio was clipped."""
    approx_kl: float
    """k3 estimate of KL(behaviour || current), nats per token."""
    ratio_mean: float
    """Mean of current over behaviour probability."""
    ratio_max: float
    """Largest ratio."""
    entropy: float
    """Mean entropy of the current policy at the sampled positions, nats."""
    num_rows: int
    """Rows in the batch."""
    num_tokens: int
    """Sampled tokens in the batch: the loss's denominator."""
    num_micro_batches: int
    """Forward passes it took."""

    def as_dict(self) -> dict[str, float]:
        """The fields by name, for logs and metrics files."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyWeights:
    """A copy of the policy's weights; later steps do not touch it."""

    tensors: dict[str, torch.Tensor]
    """By name in the model's state dict, on the CPU, contiguous, without the tied names."""
    tied: dict[str, str]
    """Names that share another tensor's storage, mapped to the name in `tensors`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BackendState:
    """Everything an exact resume needs, as flat tensors and plain numbers: safetensors and JSON hold it, no pickle."""

    tensors: dict[str, torch.Tensor]
    """`model.<name>`, `optimizer.<slot>.<name>` and `rng.<device>`, copies on the CPU."""
    numbers: dict[str, int]
    """`steps_done`: optimiser steps so far (the schedule's position)."""


class TrainerBackend(Protocol):
    """Holds the policy and its optimiser. All methods block: call them from a thread, one at a time.

    Example: `metrics = backend.step(training_rows(groups, advantages))`.
    """

    @property
    def steps_done(self) -> int:
        """Optimiser steps so far, restored by `load_state`."""
        ...

    def step(self, batch: Sequence[TrainingRow]) -> StepMetrics:
        """Run one optimiser step over the whole batch.

        Args:
            batch: at least one row with at least one sampled token.

        Raises:
            InvalidInputError: the batch is empty or a row is malformed.
            InternalError: loss or gradient is not finite; the weights are as they were.
        """
        ...

    def logprobs(self, rows: Sequence[TokenRow]) -> list[NDArray[np.float32]]:
        """Log-prob of each sampled token under the current weights: `[T]` per row, 0 where the mask is 0."""
        ...

    def snapshot(self) -> PolicyWeights:
        """Copy the current weights."""
        ...

    def state(self) -> BackendState:
        """Copy everything that an exact resume needs."""
        ...

    def load_state(self, state: BackendState) -> None:
        """Continue from `state` as if nothing had happened in between.

        Raises:
            ConfigError: the state belongs to another model.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write the current weights as a Hugging Face folder that `transformers` loads.

        Args:
            folder: replaced as a whole, so that it is never half written.
        """
        ...
