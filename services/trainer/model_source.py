"""Where the policy comes from: a folder that exists, or the tiny model that is built once and kept.

Owns the cache of built models, `<run.directory>/.models/`, and which rows a warm start may see.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.errors import ConfigError
from services.common.model_folder import check_model_folder, find_model_folder
from services.trainer.export import replace_folder
from services.trainer.tiny_model import TinyModelShape, build_tiny_model
from services.trainer.warm_start import WarmStartSettings, prepare_warm_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.config import RunConfig
    from services.trainer.dataset import DataRow, RunData

CACHE_FOLDER = ".models"
"""Beside the run directories, so that runs share what was built."""

_MEASURED_ROWS = 64
_HEADROOM = 0.15


def resolve_model(config: RunConfig, data: RunData, *, progress: Callable[[str], None]) -> Path:
    """Find the model folder, building it when the configuration says so.

    Args:
        config: the run's configuration.
        data: rows that a warm start learns the format from.
        progress: gets a line now and then.

    Raises:
        ConfigError: the folder is no usable model, or the warm start missed its bounds.
    """
    if not config.model.build:
        return find_model_folder(config.model.path)
    cache = Path(config.run.directory) / CACHE_FOLDER
    shape = _shape(config)
    warm = config.model.warm_start
    if warm.max_steps == 0:
        return _random_model(cache, data, seed=config.run.seed, shape=shape).resolve()
    settings = WarmStartSettings(
        seed=config.run.seed,
        max_steps=warm.max_steps,
        batch_size=warm.batch_size,
        learning_rate=warm.learning_rate,
        wrong_share=warm.wrong_share,
        stop_at_pass_rate=warm.stop_at_pass_rate,
        max_pass_rate=min(1.0, warm.stop_at_pass_rate + _HEADROOM),
        shape=shape,
    )
    result = prepare_warm_start(
        cache,
        settings,
        train_pairs=_pairs(data.train),
        held_out_pairs=_pairs(data.validation or data.train[:_MEASURED_ROWS]),
        progress=progress,
    )
    return result.folder.resolve()


def _random_model(cache: Path, data: RunData, *, seed: int, shape: TinyModelShape) -> Path:
    """Build the tiny model without a warm start, or find it in the cache."""
    questions = [row.question for row in data.train]
    content = json.dumps({"seed": seed, "shape": asdict(shape), "questions": questions}, sort_keys=True)
    folder = cache / f"random-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"
    if not folder.is_dir():

        def write(target: Path) -> None:
            build_tiny_model(target, corpus=questions, seed=seed, shape=shape)

        replace_folder(folder, write, keep_existing=True)
    check_model_folder(folder)
    return folder


def _shape(config: RunConfig) -> TinyModelShape:
    """Size of the tiny model."""
    size = config.model.hidden_size
    heads = TinyModelShape().num_heads
    if size % (2 * heads):
        raise ConfigError(f"model.hidden_size is {size}; use a multiple of {2 * heads}, the model has {heads} heads")
    return TinyModelShape(
        hidden_size=size,
        intermediate_size=4 * size,
        num_layers=config.model.num_layers,
        max_context_tokens=config.model.max_context,
    )


def _pairs(rows: tuple[DataRow, ...]) -> list[tuple[str, str]]:
    """Question and answer of every row."""
    return [(row.question, row.answer) for row in rows]
