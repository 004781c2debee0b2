"""Long polls: try, wait for news, try again until the time is over.

News of this process arrives at once; what another instance of the service or the clock changed is found by looking
again, at growing intervals.

    consumes      notify() after every change that may help a waiter
    waits for     news, the next look, or the end of the wait
    unblocked by  any of these; close() ends all waits at once
"""

from __future__ import annotations

import asyncio
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


class Waiting:
    """The waiters of this process."""

    def __init__(self) -> None:
        """Start without waiters."""
        self._news: dict[tuple[RunId, Topic], asyncio.Event] = {}
        self._closed = False

    def notify(self, run_id: RunId, *topics: Topic) -> None:
        """Wake the waiters of `topics`; all of them when none is named."""
        for topic in topics or tuple(Topic):
            event = self._news.pop((run_id, topic), None)
            if event is not None:
                event.set()

    def close(self) -> None:
        """End every wait now, and those to come at their first try."""
        self._closed = True
        for event in self._news.values():
            event.set()
        self._news.clear()

    async def until(
        self,
        run_id: RunId,
        topic: Topic,
        attempt: Callable[[], Awaitable[T]],
        *,
        enough: Callable[[T], bool],
        wait_seconds: float,
    ) -> T:
        """Repeat `attempt` until its result is `enough` or the time is over; returns the last result."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        look_seconds = _FIRST_LOOK_SECONDS
        while True:
            # Taken before the try, so that news during the try are not missed.
            news = self._news.setdefault((run_id, topic), asyncio.Event())
            result = await attempt()
            left = deadline - clock()
            if enough(result) or left <= 0 or self._closed:
                return result
            try:
                async with asyncio.timeout(min(left, look_seconds)):
                    await news.wait()
            except TimeoutError:
                look_seconds = min(_MAX_LOOK_SECONDS, look_seconds * _GROWTH)
