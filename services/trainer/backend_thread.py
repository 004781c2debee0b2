"""The one thread that computes: model, optimiser and checkpoint files, so that the event loop only waits.

A backend is not for two threads at once; all calls go through here, one after the other.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class BackendThread:
    """Runs blocking calls one after the other in a thread of its own.

    Example: `metrics = await thread.run(backend.step, rows)`.
    """

    def __init__(self) -> None:
        """Start no thread before the first call."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer-backend")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the thread and wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(call, *args, **kwargs))

    def close(self) -> None:
        """Wait for the running call and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
