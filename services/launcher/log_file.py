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
        """Name the file; it is opened by the first line. Its folder must exist.

        Args:
            path: the file.
            max_bytes: size after which it is rotated.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._file: BufferedWriter | None = None
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
        file = self._file or self._path.open("ab")
        if file.tell() and file.tell() + len(data) > self._max_bytes:
            file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            file = self._path.open("ab")
        file.write(data)
        file.flush()
        self._file = file
        self._tail.append(line)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
