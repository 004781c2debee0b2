"""Checks and loads a Hugging Face model folder, with one clear sentence for each thing that can be wrong.

Owns what "a usable model folder" means: a config, weights, a tokenizer, a chat template, a known context length.
Never reaches for a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.common.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """What a model folder holds."""

    model: PreTrainedModel
    """The model in float32 on the CPU."""
    tokenizer: PreTrainedTokenizerBase
    """Its tokenizer, with a chat template."""
    max_context_tokens: int
    """Longest sequence the model accepts."""


def check_model_folder(folder: Path) -> None:
    """Look at the files of a model folder without loading anything.

    Args:
        folder: `model.path`.

    Raises:
        ConfigError: a file is missing; the message names it and says what to do.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"model.path {str(folder)!r} is not a folder; give a local Hugging Face folder or set model.build"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model folder {str(folder)!r} has no config.json; give the folder that save_pretrained wrote"
        )
    if not any(any(folder.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        raise ConfigError(
            f"model folder {str(folder)!r} has no weights (model.safetensors); was the download cut short?"
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model folder {str(folder)!r} has no tokenizer (tokenizer.json); save the tokenizer there too"
        )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a folder's tokenizer and make sure that it can render a chat.

    Args:
        folder: `model.path`.

    Returns:
        The tokenizer.

    Raises:
        ConfigError: it does not load, or has no chat template.
    """
    check_model_folder(folder)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # Foreign files: tokenizers raises bare Exceptions, and what fits no class is still a bad folder.
        raise ConfigError(f"the tokenizer in {str(folder)!r} does not load: {_first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer in {str(folder)!r} has no chat template; "
            "use an instruct model, or put a chat_template.jinja into the folder"
        )
    return tokenizer


def load_model_folder(folder: Path) -> LoadedModel:
    """Load model and tokenizer, in float32 on the CPU.

    Args:
        folder: `model.path`.

    Returns:
        Both, with the model's context length.

    Raises:
        ConfigError: something is missing or does not load.
    """
    tokenizer = load_tokenizer(folder)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except Exception as error:
        # The same holds here: safetensors, torch and the configuration each raise classes of their own.
        raise ConfigError(f"the model in {str(folder)!r} does not load: {_first_line(error)}") from error
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer in {str(folder)!r} has {len(tokenizer)} tokens and the model {rows}; "
            "put the tokenizer that belongs to the model there"
        )
    return LoadedModel(model=model, tokenizer=tokenizer, max_context_tokens=context_length(model.config))


def context_length(config: PretrainedConfig) -> int:
    """Read the longest sequence a model accepts from its config.

    Args:
        config: the model's config.

    Returns:
        Number of tokens, >= 1.

    Raises:
        ConfigError: the config does not say.
    """
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(found, int) or found < 1:
        raise ConfigError(
            f"the model's config.json says no max_position_embeddings (it is {found!r}); add the context length"
        )
    return found


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
