"""A log file of bounded size that remembers its last lines."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedWriter
    from pathlib import Path

_MAX_BYTES = 16 * 1024 * 1024
_TAIL_LINES = 20


class LogFile:
    """Appends lines to a file; when it is full the file becomes `<name>.1`, which replaces the one before.

    A service thus never holds more than twice `max_bytes` on disk.
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        """Open the file for appending; its folder must exist.

        Args:
            path: the file.
            max_bytes: size after which it is rotated.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._file: BufferedWriter = path.open("ab")
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def path(self) -> Path:
        """Where the lines go."""
        return self._path

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._tail)

    def write(self, line: str) -> None:
        """Append one line."""
        data = line.encode("utf-8", "replace") + b"\n"
        if self._file.tell() + len(data) > self._max_bytes and self._file.tell() > 0:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab")
        self._file.write(data)
        self._file.flush()
        self._tail.append(line)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()
