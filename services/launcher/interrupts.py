"""Ctrl-C and SIGTERM: the first asks for a drain, the second ends everything at once."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

T = TypeVar("T")


class InterruptedByUserError(Exception):
    """What was going on was ended by the user."""


class Interrupts:
    """Counts the user's wishes to stop."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.drain = asyncio.Event()
        """Set by the first signal."""
        self.force = asyncio.Event()
        """Set by the second."""

    def ask(self) -> None:
        """Ask once more, as a signal does."""
        if self.drain.is_set():
            self.force.set()
        self.drain.set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to SIGINT and SIGTERM inside the block."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, but cancel it when the user asks.

        Raises:
            InterruptedByUserError: the user asked first.
        """
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(self.drain.wait())
            task = group.create_task(_kept(work))
            await asyncio.wait((asked, task), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if not task.done():
                task.cancel()
        if task.cancelled():
            raise InterruptedByUserError
        result = task.result()
        if isinstance(result, Exception):
            raise result
        return result


async def _kept(work: Coroutine[Any, Any, T]) -> T | Exception:
    """Return a failure as a value, so that it leaves the task group as itself and not inside an exception group."""
    try:
        return await work
    except Exception as error:  # raised again by `unless_asked`
        return error
