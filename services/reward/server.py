"""The wiring of the reward service: workers, desk, servicer, and the life cycle that all services share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.v1 import reward_service_pb2_grpc

from services.common.rpc.server import run_service
from services.reward.desk import ScoreDesk
from services.reward.pool import WorkerPool
from services.reward.servicer import RewardServicer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import grpc

    from services.reward.config import ServiceConfig

# A prompt, a completion and a dataset row are texts; whatever is larger is a mistake.
_MAX_REQUEST_BYTES = 16 * 1024 * 1024


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
        on_bound: called with the bound `host:port` when the workers are warm.
        stop: set it to end the service.
        handle_signals: off where several services share a process.

    Raises:
        ConfigError: a scorer cannot be loaded, or the address cannot be bound.
    """
    pool = WorkerPool(config)
    desk = ScoreDesk(config, pool)

    def register(server: grpc.aio.Server) -> None:
        add_servicer = reward_service_pb2_grpc.add_RewardServiceServicer_to_server
        add_servicer(RewardServicer(desk), server)  # type: ignore[no-untyped-call]

    async def on_started(bound: str) -> None:
        await desk.start()
        if on_bound is not None:
            on_bound(bound)

    try:
        await run_service(
            "reward",
            address=config.address,
            register=register,
            background=[pool.run],
            on_started=on_started,
            stop=stop,
            max_message_bytes=_MAX_REQUEST_BYTES,
            handle_signals=handle_signals,
        )
    finally:
        await pool.close()
