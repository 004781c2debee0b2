"""Long polls: try, wait for news, try again until the time is over.

News of this process arrives at once; what another instance of the service or the clock changed is found by looking
again, at growing intervals.

    consumes      notify() after every change that may help a waiter
    waits for     as much news as it needs, the next look, or the end of the wait
    unblocked by  any of these; close() ends all waits at once
"""

from __future__ import annotations

import asyncio
import math
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.common.types import RunId

T = TypeVar("T")

_FIRST_LOOK_SECONDS = 0.03
_MAX_LOOK_SECONDS = 0.25
_GROWTH = 1.5


class Topic(StrEnum):
    """What a waiter waits for."""

    TASKS = "tasks"
    """Members to lease."""
    GROUPS = "groups"
    """Ready groups."""


class _Waiter:
    """One wait: woken once as much has come since its last try as that try missed."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._came = 0.0
        self._missing = math.inf

    def begin(self) -> None:
        """Forget what came before the try that begins; what comes meanwhile counts."""
        self._came, self._missing = 0.0, math.inf
        self._woken.clear()

    def expect(self, missing: float) -> None:
        """Say what the try missed."""
        self._missing = missing
        self.tell(0.0)

    def tell(self, amount: float) -> None:
        """Bring news."""
        self._came += amount
        if self._came >= self._missing:
            self._woken.set()

    async def wait(self) -> None:
        """Wait for enough of it."""
        await self._woken.wait()


class Waiting:
    """The waiters of this process."""

    def __init__(self) -> None:
        """Start without waiters."""
        self._waiters: dict[tuple[RunId, Topic], set[_Waiter]] = {}
        self._closed = False

    def notify(self, run_id: RunId, *topics: Topic, amount: float = math.inf) -> None:
        """Bring news to the waiters of `topics`; of all of them when none is named.

        Args:
            run_id: the run.
            *topics: what the news are of.
            amount: how much there is of it; a waiter that misses more sleeps on. Unknown: it wakes all.
        """
        for topic in topics or tuple(Topic):
            for waiter in self._waiters.get((run_id, topic), ()):
                waiter.tell(amount)

    def close(self) -> None:
        """End every wait now, and those to come at their first try."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.tell(math.inf)

    async def until(
        self,
        run_id: RunId,
        topic: Topic,
        attempt: Callable[[], Awaitable[T]],
        *,
        enough: Callable[[T], bool],
        wait_seconds: float,
        missing: Callable[[T], int] = lambda _: 1,
    ) -> T:
        """Repeat `attempt` until its result is `enough` or the time is over; returns the last result.

        Args:
            run_id: the run.
            topic: the news that may help.
            attempt: what is tried.
            enough: whether a result ends the wait.
            wait_seconds: longest wait.
            missing: how much news it takes at least before another try can be enough.
        """
        waiter = _Waiter()
        waiters = self._waiters.setdefault((run_id, topic), set())
        waiters.add(waiter)
        try:
            return await self._until(waiter, attempt, enough=enough, wait_seconds=wait_seconds, missing=missing)
        finally:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[run_id, topic]

    async def _until(
        self,
        waiter: _Waiter,
        attempt: Callable[[], Awaitable[T]],
        *,
        enough: Callable[[T], bool],
        wait_seconds: float,
        missing: Callable[[T], int],
    ) -> T:
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        look_seconds = _FIRST_LOOK_SECONDS
        while True:
            waiter.begin()
            result = await attempt()
            left = deadline - clock()
            if enough(result) or left <= 0 or self._closed:
                return result
            waiter.expect(missing(result))
            try:
                async with asyncio.timeout(min(left, look_seconds)):
                    await waiter.wait()
            except TimeoutError:
                look_seconds = min(_MAX_LOOK_SECONDS, look_seconds * _GROWTH)
