"""Policy version numbers: they only grow, over restarts too.

Owns the file in the run directory that a number is written to, and forced to disk, before anybody else hears of it. So
a trainer that dies at any instant can never lead to a number that means two sets of weights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from services.common.errors import ConfigError
from services.trainer.run_directory import write_durably

if TYPE_CHECKING:
    from pathlib import Path

NO_VERSION = -1
"""Stands for "none yet"."""


class VersionFile:
    """Assigns version numbers from a file.

    Example: `VersionFile(run.version_file).assign(above=max(register, replicas))`.
    """

    def __init__(self, path: Path) -> None:
        """Read what was assigned before.

        Args:
            path: the file; it need not exist.

        Raises:
            ConfigError: the file is not what this class wrote.
        """
        self._path = path
        self._newest, self._epoch = self._read()

    @property
    def newest(self) -> int:
        """Newest assigned version; -1 before the first."""
        return self._newest

    @property
    def epoch(self) -> int:
        """Epoch of the trainer that wrote last; 0 before the first."""
        return self._epoch

    def assign(self, *, epoch: int, above: int = NO_VERSION) -> int:
        """Take the next number; it is on disk when this returns.

        Args:
            epoch: the caller's epoch.
            above: a number seen elsewhere (checkpoint, register, replicas) that the new one must exceed.
        """
        # Read again: a trainer that took over meanwhile may have written a larger one.
        version = max(self._newest, self._read()[0], above) + 1
        write_durably(self._path, json.dumps({"version": version, "epoch": epoch}) + "\n")
        self._newest, self._epoch = version, epoch
        return version

    def _read(self) -> tuple[int, int]:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            return int(values["version"]), int(values["epoch"])
        except FileNotFoundError:
            return NO_VERSION, 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}); it holds the newest policy version of the run: "
                "restore it, or write the newest version that a replica reported"
            ) from None
