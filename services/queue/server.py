"""The wiring of the queue service: store, servicer, sweeper, and the life cycle that all services share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from services.common.errors import UnavailableError
from services.common.rpc.server import run_service
from services.queue.servicer import QueueServicer, add_queue_servicer
from services.queue.store import QueueStore

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from services.queue.config import ServiceConfig


async def serve(
    config: ServiceConfig,
    *,
    on_bound: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    handle_signals: bool = True,
) -> None:
    """Run the service until it is told to stop.

    Args:
        config: its settings.
        on_bound: called with the bound `host:port` when it can be used.
        stop: set it to end the service.
        handle_signals: off where several services share a process.

    While Redis cannot be reached the service runs and says NOT_SERVING; calls fail with UNAVAILABLE.

    Raises:
        UnavailableError: Redis could not be reached for `config.patience_seconds`.
        ConfigError: Redis refuses the password or may evict keys, or the address cannot be bound.
    """
    stop = stop or asyncio.Event()
    store = QueueStore(config.redis_url, config.quotas)

    def register(server: grpc.aio.Server) -> None:
        add_queue_servicer(QueueServicer(store), server)

    async def on_started(bound: str) -> None:
        await store.wait_for_server(patience_seconds=config.patience_seconds, stop=stop)
        if on_bound is not None and not stop.is_set():
            on_bound(bound)

    try:
        with suppress(UnavailableError):
            # What waiting cannot help is refused before anything is bound.
            await store.start()
        await run_service(
            "queue",
            address=config.address,
            register=register,
            background=[store.sweep_forever, store.retire_forever],
            on_started=on_started,
            on_drain=store.drain,
            stop=stop,
            handle_signals=handle_signals,
        )
    finally:
        await store.close()
