"""Checks data and model before anything starts, and builds the model if it is to be built.

`python -m services.trainer.prepare --config FILE` prints progress and, as its last line, `{"model_path": ...}`. Bad
input ends in one sentence on standard error and exit status 2, with nothing half written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.config import load_config
from services.common.errors import ConfigError, HeadraceError
from services.trainer.dataset import load_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from services.common.config import RunConfig
    from services.trainer.dataset import DataRow

EXIT_BAD_INPUT = 2
"""The configuration, the data or the model is wrong."""


def prepare(config: RunConfig, *, folder: Path, progress: Callable[[str], None]) -> Path:
    """Check everything and return the model folder.

    Args:
        config: the run's configuration.
        folder: where relative paths of data files start.
        progress: gets a line for each stage.

    Raises:
        ConfigError: data, devices or model are wrong.
    """
    data = load_data(config, folder=folder)
    excluded = f", {data.num_excluded} left out since their question is held out" if data.num_excluded else ""
    progress(f"data: {len(data.train)} training rows, {len(data.validation)} held out{excluded}")
    # Loading torch takes seconds; bad data is found before.
    import torch  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    from services.common.model_folder import context_length, load_tokenizer  # noqa: PLC0415
    from services.trainer.model_source import resolve_model  # noqa: PLC0415

    check_devices(config, has_cuda=torch.cuda.is_available())
    # Bars would stand where the one sentence about bad input belongs.
    disable_progress_bar()
    model = resolve_model(config, data, progress=progress)
    tokenizer = load_tokenizer(model, trust_remote_code=config.model.trust_remote_code)
    context = context_length(
        AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=config.model.trust_remote_code)
    )
    if config.engine.max_context:
        context = min(context, config.engine.max_context)
    longest = check_prompts([*data.train, *data.validation], tokenizer=tokenizer, max_context_tokens=context)
    progress(f"model: {model}; longest prompt {longest} of {context} tokens")
    return model


def check_devices(config: RunConfig, *, has_cuda: bool) -> None:
    """Make sure that no service is told to use a GPU that is not there.

    Raises:
        ConfigError: this machine has no CUDA device and one is named.
    """
    for key, device in (("trainer.device", config.trainer.device), ("engine.device", config.engine.device)):
        if device.startswith("cuda") and not has_cuda:
            raise ConfigError(f"{key} is {device!r} and this machine has no CUDA device; use cpu or auto")


def check_prompts(rows: Sequence[DataRow], *, tokenizer: PreTrainedTokenizerBase, max_context_tokens: int) -> int:
    """Render every prompt and make sure that it leaves room for one token at least; returns the longest one's length.

    Raises:
        ConfigError: a prompt is empty, too long or cannot be rendered; names file and line.
    """
    longest = 0
    for row in rows:
        chat = [{"role": message.role, "content": message.content} for message in row.messages]
        try:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        except Exception as error:
            # Chat templates are programs of their own and raise whatever they like.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(f"{row.origin}: the model's chat template cannot render it: {reason}") from error
        if not ids:
            raise ConfigError(f"{row.origin}: the prompt has no tokens; every row needs a prompt")
        if len(ids) > max_context_tokens - 1:
            raise ConfigError(
                f"{row.origin}: the prompt has {len(ids)} tokens and the context {max_context_tokens}, which leaves no "
                "room for an answer; shorten it, or take a model with a longer context"
            )
        longest = max(longest, len(ids))
    return longest


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 says that everything is in place, 2 that the input is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m services.trainer.prepare", description="Checks data and model, and builds the model."
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's configuration file")
    known, flags = parser.parse_known_args(arguments)
    try:
        config = load_config(known.config, flags)
        model = prepare(config, folder=known.config.resolve().parent, progress=_say)
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error.message}\n")
        return EXIT_BAD_INPUT if error.code == "INVALID_ARGUMENT" else 1
    _say(json.dumps({"model_path": str(model)}))
    return 0


def _say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
