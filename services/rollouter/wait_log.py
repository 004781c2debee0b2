"""Says in the log why a rollouter gets no work: first after a while, then ever more seldom while it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError
from services.common.standing import describe_idleness, describe_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.rollouter.ports import TaskQueue

_GROWTH = 2.0

_log = structlog.get_logger("headrace.rollouter")


class WaitLog:
    """Measures how long there has been nothing to do.

    Example:
        waits = WaitLog(queue, after_seconds=10.0, clock=time.monotonic)
        await waits.note(working=False, policy_version=3)
    """

    def __init__(self, queue: TaskQueue, *, after_seconds: float, clock: Callable[[], float]) -> None:
        """Start with work.

        Args:
            queue: asked for the reason.
            after_seconds: time without work after which the reason is logged.
            clock: monotonic seconds.
        """
        self._queue = queue
        self._after_seconds = after_seconds
        self._clock = clock
        self._since: float | None = None
        self._due_seconds = after_seconds

    async def note(self, *, working: bool, policy_version: int) -> None:
        """Say whether there is work; called after every try to get some.

        Args:
            working: whether something is held.
            policy_version: what is served.
        """
        now = self._clock()
        if working:
            if self._since is not None and self._due_seconds > self._after_seconds:
                _log.info("has work again", waited_seconds=round(now - self._since, 1))
            self._since, self._due_seconds = None, self._after_seconds
            return
        self._since = now if self._since is None else self._since
        waited = now - self._since
        if waited < self._due_seconds:
            return
        try:
            stats = await self._queue.get_stats()
        except HeadraceError:
            # The try to lease says it, and is repeated.
            return
        self._due_seconds = waited * _GROWTH
        say = _log.warning if describe_trainer(stats) else _log.info
        say(
            "waits for work",
            waited_seconds=round(waited, 1),
            why=describe_idleness(stats, policy_version=policy_version),
        )
