"""Bulk values that this process has just had in its hands, so that Redis is not asked for them again.

Only for values that never change under their key, so that a kept one is right: a task's body is named by its content,
and a payload by its lease. What is not kept is read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.queue.connection import RedisConnection

# What the interpreter needs for a kept value beside its bytes and its key's: many bodies are smaller than that.
_ENTRY_BYTES = 200


class Kept:
    """Values, of which the newest are kept up to a bound of memory."""

    def __init__(self, redis: RedisConnection, *, max_bytes: int) -> None:
        """Use the connection; start with nothing kept."""
        self._redis = redis
        self._max_bytes = max_bytes
        self._kept: dict[str, bytes] = {}
        self._num_bytes = 0
        self._reads: dict[str, asyncio.Future[bytes | None]] = {}

    def keep(self, key: str, value: bytes) -> None:
        """Keep what Redis holds under the key; the oldest leave when there is no room."""
        size = _size(key, value)
        if key in self._kept or size > self._max_bytes:
            return
        self._kept[key] = value
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    async def take(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return values that will hardly be asked for again, and keep them no longer. What is gone is left out."""
        found = {key: self._drop(key) for key in keys if key in self._kept}
        missing = [key for key in keys if key not in found]
        read = await self._redis.read(missing)
        return found | {key: value for key, value in zip(missing, read, strict=True) if value is not None}

    async def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Read values and keep them; once for all who ask for one at the same time. A key that is gone is left out."""
        found = {key: self._kept[key] for key in keys if key in self._kept}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        theirs = {key: self._reads[key] for key in missing if key in self._reads}
        found |= await self._read_new([key for key in missing if key not in theirs])
        for key, read in theirs.items():
            await asyncio.wait([read])
            if read.cancelled():
                # Its caller left; what it was to read for all is read again.
                found |= await self.read([key])
            elif (value := read.result()) is not None:
                found[key] = value
        return found

    async def _read_new(self, keys: list[str]) -> dict[str, bytes]:
        """Read values that nobody is reading, for everyone who comes meanwhile."""
        if not keys:
            return {}
        reads: dict[str, asyncio.Future[bytes | None]] = {
            key: asyncio.get_running_loop().create_future() for key in keys
        }
        self._reads |= reads
        try:
            values = await self._redis.read(keys)
            for key, value in zip(keys, values, strict=True):
                reads[key].set_result(value)
                if value is not None:
                    self.keep(key, value)
        except Exception as error:
            for read in reads.values():
                read.set_exception(error)
                read.exception()  # nobody may have come meanwhile
            raise
        finally:
            for key, read in reads.items():
                del self._reads[key]
                read.cancel()
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def _drop(self, key: str) -> bytes:
        value = self._kept.pop(key)
        self._num_bytes -= _size(key, value)
        return value


def _size(key: str, value: bytes) -> int:
    """Return the memory that a kept value takes."""
    return _ENTRY_BYTES + len(key) + len(value)
