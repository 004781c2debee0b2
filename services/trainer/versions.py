"""Policy version numbers: they only grow, over restarts too. And who may write into the run directory.

Owns the file in the run directory that a number is written to, and forced to disk, before anybody else hears of it. So
a trainer that dies at any instant can never lead to a number that means two sets of weights. The file names the epoch
of the trainer that owns the directory: one with an older epoch was replaced, and is told so before it writes anything,
also when the queue's store, which would say the same, was lost meanwhile.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from services.common.errors import ConfigError, FencedError
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
        # The trainer's threads claim, assign and check at the same time.
        self._lock = threading.Lock()
        self._newest, self._epoch = self._read()

    @property
    def newest(self) -> int:
        """Newest assigned version; -1 before the first."""
        return self._newest

    @property
    def epoch(self) -> int:
        """Epoch of the trainer that wrote last; 0 before the first."""
        return self._epoch

    @property
    def is_missing(self) -> bool:
        """Whether there is no file: nothing was assigned yet, or it was lost."""
        return not self._path.exists()

    def check(self) -> None:
        """Make sure that no trainer newer than the one that claimed last here owns the run directory.

        Raises:
            FencedError: one does.
        """
        with self._lock:
            self._owned(self._epoch)

    def claim(self, epoch: int) -> None:
        """Take the run directory over: whoever has an older epoch is refused from now on.

        Args:
            epoch: the caller's epoch.

        Raises:
            FencedError: a newer trainer has it.
        """
        with self._lock:
            newest = self._owned(epoch)
            self._write(max(self._newest, newest), epoch)

    def assign(self, *, above: int = NO_VERSION) -> int:
        """Take the next number; it is on disk when this returns.

        Args:
            above: a number seen elsewhere (checkpoint, register, replicas) that the new one must exceed.

        Raises:
            FencedError: a newer trainer owns the run directory.
        """
        with self._lock:
            version = max(self._newest, self._owned(self._epoch), above) + 1
            self._write(version, self._epoch)
            return version

    def _owned(self, epoch: int) -> int:
        """Read the file again, since another trainer may have claimed it; returns the newest version in it."""
        newest, owner = self._read()
        if owner > epoch:
            raise FencedError(f"epoch {epoch} was replaced: {self._path} belongs to epoch {owner}")
        return newest

    def _write(self, version: int, epoch: int) -> None:
        write_durably(self._path, json.dumps({"version": version, "epoch": epoch}) + "\n")
        self._newest, self._epoch = version, epoch

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
