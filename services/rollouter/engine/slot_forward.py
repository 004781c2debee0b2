"""All live sequences in one forward pass per token, with slots that join and leave between steps.

Guarantees: no sequence waits for a longer one, and a step costs what its live rows cost. It drives the model's own
forward through the cache and attention of `slot_cache`; `fits` proves for the loaded model that this gives the model's
own numbers, and whoever builds an engine falls back to `SequentialForward` where it does not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from services.rollouter.engine.slot_cache import ATTENTION_NAME, SlotCache, register_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_FULL = "full_attention"
_SLIDING = "sliding_attention"
_CHECK_LENGTHS = (7, 3, 5)
_CHECK_STEPS = 3
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


class SlotForward:
    """Batched forward passes over dense rows.

    Example: `SlotForward(model, max_columns=1024).prefill(0, [(1, 2, 3), (4, 5)])`.
    """

    batch_independent = False
    """Matrix products round differently with the number of rows."""

    def __init__(self, model: PreTrainedModel, *, max_columns: int) -> None:
        """Switch the model to slot attention.

        Args:
            model: the loaded model.
            max_columns: the context length.
        """
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._device = model.device
        self._cache = SlotCache(max_columns=max_columns)
        config = model.config.get_text_config()
        self._layer_types = set(getattr(config, "layer_types", None) or (_FULL,))
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self._columns = torch.arange(max_columns, device=self._device)

    @torch.inference_mode()
    def prefill(self, first_row: int, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Read the prompts in one pass, padded on the right; equal prompts are read once."""
        unique = list(dict.fromkeys(prompts))
        place = {prompt: index for index, prompt in enumerate(unique)}
        lengths = np.array([len(prompt) for prompt in unique])
        longest = int(lengths.max())
        ids = np.zeros((len(unique), longest), dtype=np.int64)
        for index, prompt in enumerate(unique):
            ids[index, : len(prompt)] = prompt
        sources = self._to_device(np.array([place[prompt] for prompt in prompts]))
        self._cache.begin_prefill(
            rows=torch.arange(first_row, first_row + len(prompts), device=self._device), sources=sources, length=longest
        )
        # Padding lies behind every real token, so causal attention alone keeps it out. Logits are asked for only where
        # some prompt ends.
        ends, end_index = np.unique(lengths - 1, return_inverse=True)
        logits = self._run(
            self._to_device(ids),
            self._columns[:longest].expand(len(unique), -1),
            self._prefill_masks(longest),
            logits_to_keep=self._to_device(ends),
        )
        of_unique = logits[torch.arange(len(unique), device=self._device), self._to_device(end_index.reshape(-1))]
        return of_unique[sources]

    @torch.inference_mode()
    def step(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """One pass over all live rows."""
        used = int(positions.max()) + 1
        columns = self._to_device(positions)
        self._cache.begin_step(positions=columns, used=used)
        return self._decode(self._to_device(token_ids), columns, used)

    def _decode(self, token_ids: torch.Tensor, positions: torch.Tensor, used: int) -> torch.Tensor:
        """`[n, V]` logits after one token `[n]` at each row's position `[n]`."""
        return self._run(token_ids[:, None], positions[:, None], self._step_masks(positions, used))[:, -1]

    @torch.inference_mode()
    def remove(self, row: int, last: int) -> None:
        """Move the last row's keys and values into the hole."""
        if row != last:
            self._cache.move_row(last, row)

    @torch.inference_mode()
    def scrub(self, row: int) -> None:
        """Wipe the row's keys and values."""
        self._cache.zero_row(row)

    def forget(self) -> None:
        """Nothing is computed ahead."""

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        """An integer array as a tensor where the model is."""
        return torch.from_numpy(array).to(self._device)

    def _run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        masks: torch.Tensor | dict[str, torch.Tensor | None] | None,
        *,
        logits_to_keep: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Call the model."""
        model: Any = self._model
        output = model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _prefill_masks(self, length: int) -> torch.Tensor | dict[str, torch.Tensor | None] | None:
        """None is plain causal; windowed layers get a mask of their own once a prompt is longer than the window."""
        if self._layer_types == {_FULL}:
            return None
        window_mask = None
        if self._window and length > self._window:
            distance = self._columns[:length, None] - self._columns[None, :length]
            window_mask = self._additive((distance >= 0) & (distance < self._window))[None, None]
        return {_FULL: None, _SLIDING: window_mask}

    def _step_masks(self, positions: torch.Tensor, used: int) -> torch.Tensor | dict[str, torch.Tensor | None]:
        """`[n, 1, 1, L]`: each row sees its own columns up to and with the one it writes."""
        distance = positions[:, None] - self._columns[None, :used]
        seen = distance >= 0
        full = self._additive(seen)[:, None, None]
        if self._layer_types == {_FULL}:
            return full
        window = full if used <= self._window else self._additive(seen & (distance < self._window))[:, None, None]
        return {_FULL: full, _SLIDING: window}

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        """0 where seen, -inf elsewhere, in the model's precision."""
        return torch.zeros(seen.shape, dtype=self._model.dtype, device=self._device).masked_fill_(~seen, -torch.inf)


@torch.inference_mode()
def fits(kind: type[SlotForward], model: PreTrainedModel) -> bool:
    """Whether a kind of slots gives the loaded model's own numbers; leaves the model's attention as it was.

    A few random prompts of different lengths are read and stepped, one row leaves on the way, and the logits are
    compared with the model's plain forward pass.
    """
    before = model.config._attn_implementation
    config = model.config.get_text_config()
    if not set(getattr(config, "layer_types", None) or (_FULL,)) <= {_FULL, _SLIDING}:
        return False
    generator = np.random.default_rng(0)
    length = max(_CHECK_LENGTHS) + _CHECK_STEPS
    ids = generator.integers(0, config.vocab_size, size=(len(_CHECK_LENGTHS), length))
    plain: Any = model
    expected = plain(input_ids=torch.from_numpy(ids).to(model.device), use_cache=False).logits
    try:
        forward = kind(model, max_columns=length)
        difference = _largest_difference(forward, ids, expected)
    except (NotImplementedError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # An architecture may refuse a foreign cache or attention in any of these ways; the fallback serves it.
        logger.info("%s does not fit %s: %s", kind.__name__, type(model).__name__, error)
        return False
    finally:
        model.set_attn_implementation(before)
    bound = _TOLERANCES.get(model.dtype, 0.0) * max(1.0, float(expected.abs().max()))
    logger.info("%s differs from the plain forward by %.3g, bound %.3g", kind.__name__, difference, bound)
    return difference <= bound


def _largest_difference(forward: SlotForward, ids: NDArray[np.int64], expected: torch.Tensor) -> float:
    """Read the prompts, step them, remove the first one midway, and compare every row's logits."""
    rows = list(range(len(_CHECK_LENGTHS)))
    logits = forward.prefill(0, [tuple(int(token) for token in ids[row, : _CHECK_LENGTHS[row]]) for row in rows])
    largest = 0.0
    for step in range(_CHECK_STEPS):
        positions = np.array([_CHECK_LENGTHS[row] + step for row in rows])
        difference = (logits - expected[torch.tensor(rows), torch.from_numpy(positions - 1)]).abs().max()
        largest = max(largest, float(difference))
        if step == 1:
            forward.remove(0, len(rows) - 1)
            rows[0] = rows.pop()
            positions = np.array([_CHECK_LENGTHS[row] + step for row in rows])
        logits = forward.step(ids[rows, positions], positions)
    return largest
