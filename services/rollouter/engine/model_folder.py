"""Loads a model folder or hub name: weights, tokenizer, end tokens, context length.

Owns what transformers needs to be told, and turns its failures into one sentence for the user.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from services.common.config.learning import ModelSection
    from services.common.config.serving import EngineSection
    from services.common.types import Message


class ChatTokenizer:
    """A transformers tokenizer reduced to what an engine needs. `decode` may be called from another thread.

    Example: `ChatTokenizer(AutoTokenizer.from_pretrained(path)).render((Message(role="user", content="hi"),))`.
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
        """Chat messages as ids with the opening of the assistant's turn; plain text where there is no template."""
        if not self._tokenizer.chat_template:
            return self.encode("\n".join(message.content for message in messages))
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
class LoadedModel:
    """What a model folder holds."""

    model: PreTrainedModel
    """The weights, in evaluation mode, where they will run."""
    tokenizer: ChatTokenizer
    """Its tokenizer."""
    end_ids: tuple[int, ...]
    """Tokens that end a completion."""
    context_length: int
    """Most tokens of a sequence."""


def load_tokenizer(model: ModelSection) -> ChatTokenizer:
    """Load the tokenizer alone.

    Raises:
        ConfigError: there is none that transformers can load.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model.path is {model.path!r}: its tokenizer does not load: {error}") from error
    return ChatTokenizer(tokenizer)


def load_model(model: ModelSection, engine: EngineSection) -> LoadedModel:
    """Load weights and tokenizer.

    Raises:
        ConfigError: the folder does not hold a causal language model, or its context is unknown.
    """
    device, dtype = resolve_placement(engine)
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model.path, dtype=dtype, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"model.path is {model.path!r}: no causal language model that transformers loads: {error}"
        ) from error
    loaded = loaded.to(device).eval()
    tokenizer = load_tokenizer(model)
    return LoadedModel(
        model=loaded,
        tokenizer=tokenizer,
        end_ids=_end_ids(loaded, tokenizer),
        context_length=_context_length(loaded, engine.max_context),
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


def _context_length(model: PreTrainedModel, wanted: int) -> int:
    """The smaller of what the model can and what is wanted."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not limit and not wanted:
        raise ConfigError("the model names no context length; set engine.max_context")
    return min(length for length in (limit, wanted) if length)
