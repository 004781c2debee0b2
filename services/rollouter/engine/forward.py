"""The model's forward passes as the decode loop sees them: rows that join, step, and leave.

Owns the port and the reference implementation, one batch-of-one pass per sequence: slow, right for every architecture,
and independent of what else runs, bit for bit. The batched implementation is in `slot_forward`.

Rows are dense: live rows are always 0..n-1, a leaving row's place is taken by the last one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel


class Forward(Protocol):
    """What the decode loop asks of a model."""

    batch_independent: bool
    """Whether a row's numbers are the same whatever else is in the batch."""
    vocabulary_size: int
    """Token ids are below it."""

    def prefill(self, first_row: int, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Read the prompts into rows from `first_row` on and return `[len(prompts), V]` next-token logits."""
        ...

    def step(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """Feed one token to each live row, at its position, and return `[n, V]` next-token logits."""
        ...

    def remove(self, row: int, last: int) -> None:
        """Free `row` by moving row `last` into its place."""
        ...

    def scrub(self, row: int) -> None:
        """Wipe what `row` holds because its numbers are not finite; `remove` follows."""
        ...

    def forget(self) -> None:
        """Drop what was computed ahead under the old weights; the live rows keep their attention cache."""
        ...


class SequentialForward:
    """One batch-of-one forward per sequence, each with a cache of its own.

    Example: `SequentialForward(model).prefill(0, [(1, 2, 3)])`.
    """

    batch_independent = True
    """Each row has its own pass, with shapes that depend on its own length only."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Wrap a loaded model."""
        self._model = model
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._caches: list[DynamicCache] = []
        self._last_prompt: tuple[int, ...] = ()
        self._last_prefill: tuple[DynamicCache, torch.Tensor] | None = None

    @torch.inference_mode()
    def prefill(self, first_row: int, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Read each prompt alone; a prompt that repeats the one before it reuses its result."""
        assert first_row == len(self._caches), "rows are dense"
        # All or none: a failure leaves the live rows as they were.
        results = [self._prefill_one(prompt) for prompt in prompts]
        self._caches.extend(cache for cache, _ in results)
        return torch.cat([logits for _, logits in results])

    @torch.inference_mode()
    def step(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """One pass per row."""
        logits = [
            self._pass([int(token)], int(position), cache)
            for token, position, cache in zip(token_ids, positions, self._caches, strict=True)
        ]
        return torch.cat(logits)

    def remove(self, row: int, last: int) -> None:
        """Drop the row's cache."""
        self._caches[row] = self._caches[last]
        del self._caches[last:]

    def scrub(self, row: int) -> None:
        """Nothing to wipe: no other sequence ever sees a cache."""

    def forget(self) -> None:
        """Drop the remembered prefill."""
        self._last_prompt, self._last_prefill = (), None

    def _prefill_one(self, prompt: tuple[int, ...]) -> tuple[DynamicCache, torch.Tensor]:
        """Read one prompt into a new cache, or share the tensors of the last one if it is the same prompt.

        Members of a group have one prompt, and they come one after the other.
        """
        if prompt != self._last_prompt or self._last_prefill is None:
            cache = DynamicCache(config=self._model.config)
            logits = self._pass(prompt, 0, cache)
            # Only plain layers replace their tensors instead of writing into them, so that sharing is safe.
            if any(type(layer) is not DynamicLayer for layer in cache.layers):
                return cache, logits
            self._last_prompt, self._last_prefill = prompt, (cache, logits)
        cache, logits = self._last_prefill
        shared = copy.copy(cache)
        shared.layers = [copy.copy(layer) for layer in cache.layers]
        return shared, logits

    def _pass(self, token_ids: Sequence[int], position: int, cache: DynamicCache) -> torch.Tensor:
        """Run the model on one stretch of one sequence and return `[1, V]` logits of its last token."""
        device = self._model.device
        ids = torch.tensor([token_ids], dtype=torch.long, device=device)
        positions = torch.arange(position, position + len(token_ids), device=device)[None]
        model: Any = self._model
        output = model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = output.logits[:, -1]
        return logits
