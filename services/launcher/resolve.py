"""Turns what the user wrote into the configuration that every service of the run reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.config import dump_config
from services.launcher.process import REDIS_URL_VARIABLE

if TYPE_CHECKING:
    from services.common.config import RunConfig
    from services.launcher.run_directory import RunDirectory

_DATA_SUFFIX = ".jsonl"


def resolve_paths(config: RunConfig, config_path: Path) -> RunConfig:
    """Make paths absolute, since the services read a copy of the configuration that lies elsewhere.

    Args:
        config: as it was loaded.
        config_path: the file it came from; relative paths start there, else in the working folder.
    """
    folder = config_path.resolve().parent
    model = config.model.model_copy(update={"path": _found(config.model.path, folder)})
    data = config.data.model_copy(update={"source": _source(config.data.source, folder)})
    validation = config.validation.model_copy(update={"source": _source(config.validation.source, folder)})
    engine = config.engine.model_copy(update={"script": _found(config.engine.script, folder)})
    return config.model_copy(update={"model": model, "data": data, "validation": validation, "engine": engine})


def place_run(config: RunConfig, directory: RunDirectory) -> RunConfig:
    """Put the run's folder and name into the configuration."""
    run = config.run.model_copy(update={"directory": str(directory.path.parent), "name": directory.name})
    return config.model_copy(update={"run": run})


def with_addresses(config: RunConfig, addresses: dict[str, str]) -> RunConfig:
    """Put the services' addresses, by config key, into the configuration."""
    sections = {
        section: getattr(config, section).model_copy(update={"address": address})
        for section, address in ((key.partition(".")[0], address) for key, address in addresses.items())
    }
    return config.model_copy(update=sections)


def with_model(config: RunConfig, path: str) -> RunConfig:
    """Name the prepared model folder, so that no service has to build it."""
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path, "build": ""})})


def write_config(config: RunConfig, directory: RunDirectory) -> None:
    """Write the configuration for the services; it holds no secret, and appears whole."""
    staging = directory.config_file.with_suffix(".new")
    staging.write_text(dump_config(config), encoding="utf-8")
    staging.replace(directory.config_file)


def redis_url(config: RunConfig) -> str:
    """The Redis that the user named; empty when one is to be started."""
    return config.queue.redis_url.get_secret_value() or os.environ.get(REDIS_URL_VARIABLE, "")


def _source(source: str, folder: Path) -> str:
    """Make a data file's path absolute; generated sources are no paths.

    A file that is missing too, or it would be reported as missing from the folder of the services' own copy.
    """
    return str(folder / _found(source, folder)) if source.endswith(_DATA_SUFFIX) else source


def _found(path: str, folder: Path) -> str:
    """Return the absolute path of what exists; anything else stays as it is, for a message that repeats it."""
    if not path:
        return path
    for candidate in (folder / path, Path.cwd() / path):
        if candidate.exists():
            return str(candidate.resolve())
    return path
