"""Finds, checks and loads a Hugging Face model folder, with one clear sentence for each thing that can be wrong.

Owns what "a usable model folder" means: a config, weights, a tokenizer, a chat template, a known context length. Only
`find_model_folder` reaches for a network, and only for a hub name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.common.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """What a model folder holds."""

    model: PreTrainedModel
    """The model on the CPU, in evaluation mode."""
    tokenizer: PreTrainedTokenizerBase
    """Its tokenizer, with a chat template."""
    max_context_tokens: int
    """Longest sequence the model accepts."""


def find_model_folder(path: str) -> Path:
    """Return the folder of a model, fetching it when `path` is a hub name and not a folder.

    Args:
        path: `model.path`: a folder, or a name like `Qwen/Qwen3-0.6B`.

    Raises:
        ConfigError: it is neither, or the hub cannot be reached.
    """
    folder = Path(path)
    if folder.is_dir() or not _HUB_NAME.fullmatch(path):
        check_model_folder(folder)
        return folder.resolve()
    # Loading the hub's client takes a while; a local folder does not need it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        found = snapshot_download(path, allow_patterns=list(_HUB_FILES), etag_timeout=10.0)
    except Exception as error:
        # The client raises classes of its HTTP library beside its own; for the user all mean the same.
        raise ConfigError(
            f"model.path {path!r} is no folder here and cannot be fetched from the hub ({_first_line(error)}); "
            "give a local Hugging Face folder, or check the name and the network"
        ) from error
    check_model_folder(Path(found))
    return Path(found)


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


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a folder's tokenizer and make sure that it can render a chat.

    Args:
        folder: a local model folder.
        trust_remote_code: lets the folder run its own Python code.

    Returns:
        The tokenizer.

    Raises:
        ConfigError: it does not load, or has no chat template.
    """
    check_model_folder(folder)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        # Foreign files: tokenizers raises bare Exceptions, and what fits no class is still a bad folder.
        raise ConfigError(f"the tokenizer in {str(folder)!r} does not load: {_first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer in {str(folder)!r} has no chat template; "
            "use an instruct model, or put a chat_template.jinja into the folder"
        )
    return tokenizer


def load_model_folder(
    folder: Path, *, dtype: torch.dtype = torch.float32, trust_remote_code: bool = False
) -> LoadedModel:
    """Load model and tokenizer on the CPU.

    Args:
        folder: a local model folder.
        dtype: precision of the weights.
        trust_remote_code: lets the folder run its own Python code.

    Returns:
        Both, with the model's context length.

    Raises:
        ConfigError: something is missing or does not load.
    """
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=trust_remote_code
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
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, max_context_tokens=context_length(model.config))


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
