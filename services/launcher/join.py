"""`headrace join`: adds a rollouter to a run that is going on.

The run's folder says where its services listen. This process becomes the rollouter, so a signal reaches it directly:
Ctrl-C or SIGTERM lets it finish what it holds, give the rest back and leave.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from services.common.config import load_config
from services.common.errors import ConfigError
from services.common.run_folder import RUN_ID_VARIABLE, is_abandoned, is_finished
from services.launcher.run_directory import read_run_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import NoReturn


def join_command(run_directory: Path, flags: Sequence[str], *, replica_id: str) -> NoReturn:
    """Become a rollouter of the run.

    Args:
        run_directory: the run's folder.
        flags: `--section.key=value` words for this rollouter alone, such as its device.
        replica_id: names it; empty takes host and process id.

    Raises:
        ConfigError: it is no run directory, or the run does not go on.
    """
    argv, environment = rollouter_command(run_directory, flags, replica_id=replica_id)
    os.execve(argv[0], argv, environment)  # noqa: S606 - becoming the rollouter is the point


def rollouter_command(
    run_directory: Path, flags: Sequence[str], *, replica_id: str, environment: Mapping[str, str] = os.environ
) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment that start a rollouter of the run.

    Args:
        run_directory: the run's folder.
        flags: `--section.key=value` words for this rollouter alone.
        replica_id: names it; empty takes host and process id.
        environment: what it inherits.

    Raises:
        ConfigError: it is no run directory, or the run does not go on.
    """
    run_id = read_run_id(run_directory)
    if is_abandoned(run_directory):
        how = "has finished" if is_finished(run_directory) else "was ended; go on with it by --run.resume true first"
        raise ConfigError(f"{run_directory} cannot be joined: the run {how}")
    config_file = run_directory / "config.toml"
    threads = load_config(config_file, flags).engine.threads
    changes = {RUN_ID_VARIABLE: run_id}
    if threads:
        changes |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    name = ["--replica-id", replica_id] if replica_id else []
    argv = [sys.executable, "-m", "services.rollouter", "--config", str(config_file), *name, *flags]
    return argv, {**environment, **changes}
