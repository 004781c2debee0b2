"""Attention keys and values of all slots in buffers made once, written in place.

Owns the buffers and the attention over them. transformers' own cache concatenates every layer's keys and values anew
for each token, which costs more than the model itself; here a token writes its own column and nothing else.

Legend: `n` rows, `K` key-value heads, `G` query heads per key-value head, `C` columns held, `L` columns in use,
`D` head width, `P` prompt length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody reads)
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION_NAME = "headrace_slots"
"""Name under which the attention function is registered with transformers."""
_FIRST_ROWS = 8
_COLUMN_BLOCK = 64


class _LayerBuffers:
    """One layer's keys `[rows, K, C, D]` and values; both grow together."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> None:
        rows, columns = shape
        self.keys = keys.new_zeros((rows, keys.shape[1], columns, keys.shape[3]))
        self.values = values.new_zeros((rows, values.shape[1], columns, values.shape[3]))

    def grow(self, rows: int, columns: int) -> None:
        """Move to larger buffers."""
        for name in ("keys", "values"):
            old: torch.Tensor = getattr(self, name)
            new = old.new_zeros((rows, old.shape[1], columns, old.shape[3]))
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)


class SlotCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """A transformers cache whose rows join and leave.

    Before each forward pass `begin_prefill` or `begin_step` says which rows and columns it writes.

    Example:
        cache = SlotCache(max_columns=1024)
        cache.begin_prefill(rows=rows, sources=sources, length=12)
        model(input_ids=ids, position_ids=positions, past_key_values=cache)
    """

    def __init__(self, *, max_columns: int) -> None:
        """Start empty.

        Args:
            max_columns: the context length; no row is ever longer.
        """
        super().__init__(layers=[])
        self._max_columns = max_columns
        self._shape = (0, 0)
        self._buffers: dict[int, _LayerBuffers] = {}
        self._prefill: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rows = torch.zeros(0, dtype=torch.long)
        self._positions = torch.zeros(0, dtype=torch.long)
        self._flat: dict[int, torch.Tensor] = {}
        self._used = 0
        self._filled = 0

    def begin_prefill(self, *, rows: torch.Tensor, sources: torch.Tensor, length: int) -> None:
        """The next pass reads whole prompts.

        Args:
            rows: `[m]` rows to fill.
            sources: `[m]` which sequence of the pass fills each of them.
            length: `P`, columns the pass writes.
        """
        self._ensure(int(rows.max()) + 1, length)
        self._prefill = (rows, sources)
        self._used = length
        self._filled = max(self._filled, length)

    def begin_step(self, *, positions: torch.Tensor, used: int) -> None:
        """The next pass feeds one token to each of the first `n` rows.

        Args:
            positions: `[n]` column that each row writes.
            used: `L`, one more than the largest of them.
        """
        self._ensure(positions.shape[0], used)
        self._prefill = None
        self._positions = positions
        self._rows = torch.arange(positions.shape[0], device=positions.device)
        self._flat.clear()
        self._used = self._filled = used

    def move_row(self, source: int, target: int) -> None:
        """Copy what row `source` holds over row `target`."""
        for buffers in self._buffers.values():
            for tensor in (buffers.keys, buffers.values):
                tensor[target, :, : self._filled] = tensor[source, :, : self._filled]

    def zero_row(self, row: int) -> None:
        """Wipe a row. Columns out of sight have weight zero, but zero times NaN is NaN."""
        for buffers in self._buffers.values():
            buffers.keys[row] = 0
            buffers.values[row] = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values `[n, K, P or 1, D]` and return what its queries attend to."""
        buffers = self._buffers.get(layer_idx)
        if buffers is None:
            buffers = self._buffers[layer_idx] = _LayerBuffers(key_states, value_states, self._shape)
        if self._prefill is not None:
            rows, sources = self._prefill
            length = key_states.shape[2]
            buffers.keys[rows, :, :length] = key_states[sources]
            buffers.values[rows, :, :length] = value_states[sources]
            return key_states, value_states
        keys, values = self.write_step(layer_idx, key_states, value_states)
        return keys, values

    def write_step(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token's keys and values, `n * K * D` numbers each, and return `[n, K, L, D]` views."""
        buffers = self._buffers[layer]
        self._write_column(buffers.keys, keys)
        self._write_column(buffers.values, values)
        count, used = self._rows.shape[0], self._used
        return buffers.keys[:count, :, :used], buffers.values[:count, :, :used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the pass; positions are always given, so models have no use for it."""
        del layer_idx
        return 0

    def _write_column(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """Scatter `n * K * D` numbers into each row's own column."""
        heads, columns, width = buffer.shape[1:]
        flat = self._flat.get(heads)
        if flat is None:
            head_index = self._rows[:, None] * heads + torch.arange(heads, device=buffer.device)
            flat = self._flat[heads] = (head_index * columns + self._positions[:, None]).reshape(-1)
        buffer.view(-1, width).index_copy_(0, flat, states.reshape(-1, width))

    def _ensure(self, rows: int, columns: int) -> None:
        """Grow the buffers by doubling until they hold this many rows and columns."""
        have_rows, have_columns = self._shape
        if rows <= have_rows and columns <= have_columns:
            return
        new_rows = max(have_rows, _FIRST_ROWS)
        while new_rows < rows:
            new_rows *= 2
        new_columns = max(have_columns, _COLUMN_BLOCK)
        while new_columns < columns:
            new_columns *= 2
        self._shape = (new_rows, max(min(new_columns, self._max_columns), columns))
        for buffers in self._buffers.values():
            buffers.grow(*self._shape)


def slot_attention(  # noqa: PLR0917 (transformers calls it with these)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: causal over a prompt, or one query per row over its own columns.

    Args:
        module: the attention layer.
        query: `[n, K*G, P or 1, D]`.
        key: `[n, K, P or L, D]`.
        value: `[n, K, P or L, D]`.
        attention_mask: additive; None means causal over a prompt.
        scaling: factor of the scores; None is 1/sqrt(D).
        dropout: unused, nothing is trained here.
        **kwargs: whatever else the architecture passes.

    Returns:
        `[n, P or 1, K*G, D]` and no attention weights.

    Raises:
        NotImplementedError: the architecture asks for scores that this function does not know.
    """
    del module, dropout
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention with {name!r}")
    rows, heads, queries, width = query.shape
    groups = heads // key.shape[1]
    if queries > 1 or attention_mask is None:
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=attention_mask is None and queries > 1,
            scale=scaling,
            enable_gqa=groups > 1,
        )
        return output.transpose(1, 2).contiguous(), None
    # The queries of one key-value head share its keys, so nothing is repeated in memory.
    grouped = query.view(rows, key.shape[1], groups, width)
    if query.dtype == torch.float32 and query.device.type == "cpu":
        scores = torch.matmul(grouped, key.transpose(2, 3))
        scores.mul_(width**-0.5 if scaling is None else scaling).add_(attention_mask)
        output = torch.matmul(torch.softmax(scores, dim=-1), value)
    else:
        output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(rows, 1, heads, value.shape[3]), None


def register_attention() -> None:
    """Make the attention function known to transformers; repeating it changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, slot_attention)
