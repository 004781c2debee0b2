"""Builds a tiny Qwen3 folder from nothing: model, tokenizer, chat template, generation config.

Owns the recipe of the built-in model, so that the whole system runs on a laptop without a download. Guarantees that
the folder loads with `AutoModelForCausalLM` and `AutoTokenizer`, that any text can be encoded (bytes are the base
alphabet), that every digit is one token, and that the same shape, seed and corpus give the same weights. Knows nothing
of training.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModelShape:
    """Size of the built-in model. The default has about 0.12 M parameters.

    Example: `build_tiny_model(folder, corpus=questions, seed=0, shape=TinyModelShape(num_layers=4))`.
    """

    hidden_size: int = 64
    """Width of the residual stream."""
    intermediate_size: int = 192
    """Width inside the feed-forward blocks."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 4
    """Query heads; `hidden_size` must be a multiple of it."""
    num_key_value_heads: int = 2
    """Key and value heads, shared by groups of query heads."""
    max_vocab_size: int = 512
    """Upper bound of the vocabulary: 256 bytes, 3 special tokens, the rest learnt from the corpus."""
    max_context_tokens: int = 1024
    """Longest sequence the model accepts, in tokens."""


def build_tiny_model(folder: Path, *, corpus: Iterable[str], seed: int, shape: TinyModelShape | None = None) -> None:
    """Write a randomly initialised tiny Qwen3 model with its tokenizer into `folder`.

    Args:
        folder: where to write; made if missing.
        corpus: texts whose words become tokens; anything else is spelt in bytes.
        seed: seed of the weights; the global generator is left as it was.
        shape: size of the model.
    """
    shape = shape or TinyModelShape()
    tokenizer = build_tokenizer(
        corpus, max_vocab_size=shape.max_vocab_size, max_context_tokens=shape.max_context_tokens
    )
    end_id = tokenizer.convert_tokens_to_ids(TURN_END)
    pad_id = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.hidden_size // shape.num_heads,
        max_position_embeddings=shape.max_context_tokens,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=[end_id, pad_id], pad_token_id=pad_id
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    logger.debug("built a tiny model with %d parameters in %s", sum(p.numel() for p in model.parameters()), folder)


def build_tokenizer(corpus: Iterable[str], *, max_vocab_size: int, max_context_tokens: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in which every digit stands alone.

    Args:
        corpus: texts whose frequent words become single tokens.
        max_vocab_size: upper bound of the vocabulary.
        max_context_tokens: what the tokenizer reports as the longest input.

    Returns:
        The tokenizer with its chat template; `<|im_end|>` ends a turn, `<|endoftext|>` pads.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max_vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The role names are in every prompt, so they are worth a token of their own.
    roles = ["system\n", "user\n", "assistant\n", "tool\n"] * 2
    backend.train_from_iterator([*roles, *corpus], trainer=trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=max_context_tokens,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
