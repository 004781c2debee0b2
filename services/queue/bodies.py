"""Bodies of tasks, read once for all members of a group. A body is named by its content, so a kept one is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.queue.connection import RedisConnection

_MAX_BYTES = 16 * 1024 * 1024


class Bodies:
    """Reads bodies and keeps the newest, up to a bound in bytes."""

    def __init__(self, redis: RedisConnection, *, max_bytes: int = _MAX_BYTES) -> None:
        """Use the connection; start with nothing kept."""
        self._redis = redis
        self._max_bytes = max_bytes
        self._kept: dict[str, bytes] = {}
        self._num_bytes = 0

    async def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Read bodies; a key is left out when its task has just ended."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._kept]
        found = {key: self._kept[key] for key in keys if key in self._kept}
        for key, body in zip(missing, await self._redis.read(missing), strict=True):
            if body is not None:
                found[key] = body
                self._keep(key, body)
        return found

    def _keep(self, key: str, body: bytes) -> None:
        if key in self._kept:
            return
        self._kept[key] = body
        self._num_bytes += len(body)
        while self._num_bytes > self._max_bytes:
            oldest = next(iter(self._kept))
            self._num_bytes -= len(self._kept.pop(oldest))
