"""What the processes of a run find in its folder: the run's id, whether a launcher still holds it, whether it is done.

The launcher writes these files; a process that joins the run, or was away for long, only reads them. On another machine
there is no such folder, and nothing is concluded from that.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.types import RunId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.common.config import RunConfig

RUN_ID_FILE = "run_id"
"""Holds the run's id in the queue."""
LOCK_FILE = ".lock"
"""Locked by the launcher as long as it runs the run."""
SUMMARY_FILE = "summary.json"
"""Written last, by the trainer of a run that has finished."""
RUN_ID_VARIABLE = "HEADRACE_RUN_ID"
"""Names the run for a process that does not see its folder; the launcher sets it too."""


def folder_of(run: RunConfig) -> Path:
    """The run's folder."""
    return Path(run.run.directory) / run.run.name


def find_run_id(run: RunConfig, environment: Mapping[str, str] = os.environ) -> RunId:
    """The run's id: what the environment says, else what its folder says, else its name.

    Args:
        run: the run's configuration.
        environment: where the run may be named.
    """
    named = environment.get(RUN_ID_VARIABLE)
    if named:
        return RunId(named)
    try:
        return read_run_id(folder_of(run))
    except OSError:
        return RunId(run.run.name)


def read_run_id(folder: Path) -> RunId:
    """Read the run's id.

    Raises:
        OSError: the folder holds none.
    """
    return RunId((folder / RUN_ID_FILE).read_text(encoding="utf-8").strip())


def is_abandoned(folder: Path) -> bool:
    """Whether the folder was a launcher's and no launcher holds it any more; False when that cannot be seen from here.

    Example: `is_abandoned(Path("runs/arithmetic-1"))` is True after `headrace run` has ended, however it ended.
    """
    try:
        with (folder / LOCK_FILE).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_finished(folder: Path) -> bool:
    """Whether the run has trained to its end."""
    return (folder / SUMMARY_FILE).exists()
