"""Retries: how a client outlives the death and restart of its peer."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from services.common.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_log = structlog.get_logger("headrace.rpc")
# The seeded generator of `random` belongs to training; a retry must not move it.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between tries: a random share of a bound that doubles."""

    initial_seconds: float = 0.1
    """Bound of the first pause, > 0."""
    max_seconds: float = 2.0
    """The bound stops growing here."""
    multiplier: float = 2.0
    """Growth of the bound per try, >= 1."""

    def pause(self, tries: int) -> float:
        """Seconds to wait after `tries` failures (>= 1)."""
        # Beyond 2**32 the bound is reached in any case, and a float must not overflow.
        grown = self.initial_seconds * self.multiplier ** min(tries - 1, 32)
        bound = min(self.max_seconds, grown)
        return bound * _random.uniform(0.5, 1.0)


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    deadline_seconds: float,
    what: str = "call",
    backoff: Backoff | None = None,
) -> T:
    """Repeat `call` while it fails with a retryable `HeadraceError` and time is left.

    Each try must have a timeout of its own; the deadline bounds when the last one may begin. Only calls that are safe
    to repeat belong here; the proto of each RPC says whether it is.

    Args:
        call: makes one try.
        deadline_seconds: how long to keep trying; then the last error is raised.
        what: names the call in the log.
        backoff: pauses between tries.
    """
    backoff = backoff or Backoff()
    clock = asyncio.get_running_loop().time
    deadline = clock() + deadline_seconds
    tries = 0
    while True:
        try:
            return await call()
        except HeadraceError as error:
            tries += 1
            pause = backoff.pause(tries)
            if not error.retryable or clock() + pause > deadline:
                raise
            _log.warning("will try again", what=what, tries=tries, pause_seconds=round(pause, 3), error=error.message)
        await asyncio.sleep(pause)
