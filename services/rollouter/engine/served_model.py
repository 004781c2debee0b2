"""What an engine serves: weights where they run, a tokenizer reduced to what it needs, end tokens, context length."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from services.common.model_folder import find_model_folder, load_model_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from services.common.config.learning import ModelSection
    from services.common.config.serving import EngineSection
    from services.common.types import Message


class ChatTokenizer:
    """A transformers tokenizer reduced to what an engine needs. `decode` may be called from another thread.

    Example: `ChatTokenizer(load_tokenizer(folder)).render((Message(role="user", content="hi"),))`.
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 (transformers ships no types)
        """Wrap a loaded tokenizer."""
        self._tokenizer = tokenizer
        # The Rust tokenizer refuses to be used from two threads while one changes its settings, so each side has one.
        self._decoder = copy.deepcopy(tokenizer)

    @property
    def end_id(self) -> int | None:
        """The tokenizer's own end token."""
        end_id: int | None = self._tokenizer.eos_token_id
        return end_id

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as ids with the opening of the assistant's turn."""
        chat = [{"role": message.role, "content": message.content} for message in messages]
        ids = self._tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        return tuple(int(token) for token in ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Text as ids, without special tokens added."""
        return tuple(int(token) for token in self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, without special tokens."""
        text: str = self._decoder.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedModel:
    """A model that is ready to decode."""

    model: PreTrainedModel
    """The weights, in evaluation mode, where they run."""
    tokenizer: ChatTokenizer
    """Its tokenizer."""
    end_ids: tuple[int, ...]
    """Tokens that end a completion."""
    context_length: int
    """Most tokens of a sequence."""


def load_served_model(model: ModelSection, engine: EngineSection) -> ServedModel:
    """Load weights and tokenizer.

    Raises:
        ConfigError: the folder is no usable model.
    """
    device, dtype = resolve_placement(engine)
    folder = find_model_folder(model.path)
    loaded = load_model_folder(folder, dtype=dtype, trust_remote_code=model.trust_remote_code)
    tokenizer = ChatTokenizer(loaded.tokenizer)
    return ServedModel(
        model=loaded.model.to(device),
        tokenizer=tokenizer,
        end_ids=_end_ids(loaded.model, tokenizer),
        context_length=min(loaded.max_context_tokens, engine.max_context or loaded.max_context_tokens),
    )


def resolve_placement(engine: EngineSection) -> tuple[torch.device, torch.dtype]:
    """Where the model runs and in which precision."""
    name = engine.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if engine.dtype == "auto":
        return device, torch.float32 if device.type == "cpu" else torch.bfloat16
    return device, torch.float32 if engine.dtype == "float32" else torch.bfloat16


def _end_ids(model: PreTrainedModel, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """End tokens of the generation config, else the tokenizer's."""
    config = getattr(model, "generation_config", None)
    configured: int | list[int] | None = getattr(config, "eos_token_id", None)
    if configured is None:
        return () if tokenizer.end_id is None else (tokenizer.end_id,)
    return (configured,) if isinstance(configured, int) else tuple(configured)
