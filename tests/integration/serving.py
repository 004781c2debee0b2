"""Runs a real service on a free port inside a test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from services.common.rpc.server import run_service


@asynccontextmanager
async def serving(register, *, address="127.0.0.1:0", on_drain=None):
    """Serve inside the block and yield the bound address; stops at its end."""
    stop = asyncio.Event()
    bound = asyncio.get_running_loop().create_future()

    async def started(text):
        bound.set_result(text)

    async with asyncio.TaskGroup() as group:
        group.create_task(
            run_service(
                "test",
                address=address,
                register=register,
                on_started=started,
                on_drain=on_drain,
                stop=stop,
                grace_seconds=1.0,
                handle_signals=False,
            )
        )
        try:
            yield await asyncio.wait_for(bound, 5)
        finally:
            stop.set()


async def eventually(condition, *, seconds=10.0):
    """Wait until `condition()` is true; fails after the time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
