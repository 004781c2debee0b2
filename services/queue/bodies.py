"""Bodies of tasks, read once for all members of a group, also when several are leased at the same time.

A body is named by its content, so a kept one is right.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.queue.connection import RedisConnection

_MAX_BYTES = 4 * 1024 * 1024
# What the interpreter needs for a kept body beside its bytes and its key's: many bodies are smaller than that.
_ENTRY_BYTES = 200


class Bodies:
    """Reads bodies and keeps the newest, up to a bound of memory."""

    def __init__(self, redis: RedisConnection, *, max_bytes: int = _MAX_BYTES) -> None:
        """Use the connection; start with nothing kept."""
        self._redis = redis
        self._max_bytes = max_bytes
        self._kept: dict[str, bytes] = {}
        self._num_bytes = 0
        self._reads: dict[str, asyncio.Future[bytes | None]] = {}

    async def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Read bodies; a key is left out when its task has just ended."""
        found = {key: self._kept[key] for key in keys if key in self._kept}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        theirs = {key: self._reads[key] for key in missing if key in self._reads}
        found |= await self._read_new([key for key in missing if key not in theirs])
        for key, read in theirs.items():
            await asyncio.wait([read])
            if read.cancelled():
                # Its caller left; what it was to read for all is read again.
                found |= await self.read([key])
            elif (body := read.result()) is not None:
                found[key] = body
        return found

    async def _read_new(self, keys: list[str]) -> dict[str, bytes]:
        """Read bodies that nobody is reading, for everyone who comes meanwhile."""
        if not keys:
            return {}
        reads: dict[str, asyncio.Future[bytes | None]] = {
            key: asyncio.get_running_loop().create_future() for key in keys
        }
        self._reads |= reads
        try:
            bodies = await self._redis.read(keys)
            for key, body in zip(keys, bodies, strict=True):
                reads[key].set_result(body)
                if body is not None:
                    self._keep(key, body)
        except Exception as error:
            for read in reads.values():
                read.set_exception(error)
                read.exception()  # nobody may have come meanwhile
            raise
        finally:
            for key, read in reads.items():
                del self._reads[key]
                read.cancel()
        return {key: body for key, body in zip(keys, bodies, strict=True) if body is not None}

    def _keep(self, key: str, body: bytes) -> None:
        if key in self._kept:
            return
        self._kept[key] = body
        self._num_bytes += _size(key, body)
        while self._num_bytes > self._max_bytes:
            oldest = next(iter(self._kept))
            self._num_bytes -= _size(oldest, self._kept.pop(oldest))


def _size(key: str, body: bytes) -> int:
    """Return the memory that a kept body takes."""
    return _ENTRY_BYTES + len(key) + len(body)
