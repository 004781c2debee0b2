"""Decode steps of Llama-like models on the CPU, written out with a third of the operations.

A small model's step on a CPU is mostly the cost of starting operations. transformers' modules start about 75 per layer;
this starts about 25, on the same parameters, so that a weight swap reaches both. Prompts are read by the model's own
forward. `slot_forward.fits` proves for the loaded model that the numbers are the same.

Legend: `n` rows, `H` query heads, `K` key-value heads, `D` head width, `L` columns in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody reads)

from services.rollouter.engine.slot_forward import SlotForward

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures whose decoder layer is norm, rotary attention, norm, gated feed-forward."""
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    """A root-mean-square norm; the parameter is read anew each time, so that a swap is seen."""

    weight: torch.Tensor
    eps: float

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """References into one decoder layer."""

    attention_norm: _Norm
    query: torch.nn.Linear
    key: torch.nn.Linear
    value: torch.nn.Linear
    output: torch.nn.Linear
    query_norm: _Norm | None
    key_norm: _Norm | None
    scaling: float
    feed_norm: _Norm
    gate: torch.nn.Linear
    up: torch.nn.Linear
    down: torch.nn.Linear
    activation: Callable[[torch.Tensor], torch.Tensor]


class LeanForward(SlotForward):
    """Slots with a decode step of its own.

    Example: `LeanForward(model, max_columns=1024).step(token_ids, positions)`.
    """

    def __init__(self, model: PreTrainedModel, *, max_columns: int) -> None:
        """Find the parameters.

        Raises:
            NotImplementedError: the model is not one of `MODEL_TYPES`, in float32, on a CPU.
        """
        config: Any = model.config
        if config.model_type not in MODEL_TYPES or model.dtype != torch.float32 or model.device.type != "cpu":
            raise NotImplementedError(f"lean steps of {config.model_type!r} in {model.dtype} on {model.device}")
        super().__init__(model, max_columns=max_columns)
        body: Any = model.base_model
        if self._window or getattr(body.rotary_emb, "rope_type", "") not in ROPE_TYPES:
            raise NotImplementedError("lean steps with a sliding window, or angles that depend on the length")
        self._embedding: torch.nn.Embedding = body.embed_tokens
        self._rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] = body.rotary_emb
        self._turns = (torch.zeros(0), torch.zeros(0))
        self._layers = [_read_layer(layer) for layer in body.layers]
        self._final_norm = _read_norm(body.norm)
        self._head: Any = model.get_output_embeddings()
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)

    def _decode(self, token_ids: torch.Tensor, positions: torch.Tensor, used: int) -> torch.Tensor:
        """One token for each row through all layers."""
        hidden = F.embedding(token_ids, self._embedding.weight)
        turn = self._turn(positions, used)
        seen = positions[:, None] >= self._columns[None, :used]
        mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        mask = mask[:, None].expand(-1, self._kv_heads, -1).reshape(-1, 1, used)
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, layer.attention_norm(hidden), turn, mask)
            hidden = _add_linear(hidden, attended, layer.output)
            normed = layer.feed_norm(hidden)
            gated = layer.activation(_linear(normed, layer.gate)).mul_(_linear(normed, layer.up))
            hidden = _add_linear(hidden, gated, layer.down)
        return _linear(self._final_norm(hidden), self._head)

    def _turn(self, positions: torch.Tensor, used: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines `[n, 1, D]` of the rotary angles, from a table that grows by doubling."""
        if self._turns[0].shape[0] < used:
            columns = self._columns[: 2 * used]
            cos, sin = self._rotary(self._embedding.weight, columns[None])
            half = self._width // 2
            # rotate_half(x) * sin is x with its halves swapped, times sin with its first half negated.
            signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
            self._turns = (cos.transpose(0, 1).contiguous(), signed.transpose(0, 1).contiguous())
        return self._turns[0][positions], self._turns[1][positions]

    def _attend(
        self, index: int, normed: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        """Attention of one layer, `[n, H * D]`, with the new token's keys and values written on the way."""
        layer, rows, width = self._layers[index], normed.shape[0], self._width
        query = _linear(normed, layer.query).view(rows, self._heads, width)
        key = _linear(normed, layer.key).view(rows, self._kv_heads, width)
        value = _linear(normed, layer.value)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = layer.query_norm(query), layer.key_norm(key)
        both = torch.cat((query, key), dim=1)
        cos, signed_sin = turn
        both = torch.addcmul(both * cos, both.roll(width // 2, -1), signed_sin)
        keys, values = self._cache.write_step(index, both[:, self._heads :], value)
        pairs, used = rows * self._kv_heads, keys.shape[2]
        # The query heads of one key-value head form one small matrix, so keys are never repeated in memory.
        grouped = both[:, : self._heads].reshape(pairs, -1, width)
        scores = torch.baddbmm(mask, grouped, keys.view(pairs, used, width).transpose(1, 2), alpha=layer.scaling)
        output = torch.bmm(torch.softmax(scores, dim=-1), values.view(pairs, used, width))
        return output.view(rows, -1)


def _linear(hidden: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    """The linear map, without the module call."""
    return F.linear(hidden, linear.weight, linear.bias)


def _add_linear(residual: torch.Tensor, hidden: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    """Residual plus linear map, in one operation where there is no bias."""
    bias: torch.Tensor | None = linear.bias
    if bias is None:
        return torch.addmm(residual, hidden, linear.weight.t())
    return residual + _linear(hidden, linear)


def _read_norm(module: Any) -> _Norm:  # noqa: ANN401 (transformers ships no types)
    """References into a norm."""
    return _Norm(module.weight, float(module.variance_epsilon))


def _read_layer(module: Any) -> _Layer:  # noqa: ANN401 (transformers ships no types)
    """References into a decoder layer."""
    attention, feed = module.self_attn, module.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        attention_norm=_read_norm(module.input_layernorm),
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        output=attention.o_proj,
        query_norm=None if query_norm is None else _read_norm(query_norm),
        key_norm=None if key_norm is None else _read_norm(key_norm),
        scaling=float(attention.scaling),
        feed_norm=_read_norm(module.post_attention_layernorm),
        gate=feed.gate_proj,
        up=feed.up_proj,
        down=feed.down_proj,
        activation=feed.act_fn,
    )
