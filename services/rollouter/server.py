"""The wiring of a rollouter: channels, clients, engine, policy sync, worker, and the life cycle of all services."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from headrace.v1 import rollouter_service_pb2_grpc

from services.common.clients.policy import PolicyClient
from services.common.clients.queue import QueueClient
from services.common.clients.reward import RewardClient, failure_of
from services.common.rpc.channel import open_channel
from services.common.rpc.retry import Backoff
from services.common.rpc.server import run_service
from services.common.run_folder import folder_of, is_abandoned, is_finished
from services.rollouter.agents.single_turn import SingleTurn
from services.rollouter.attempts import AttemptRunner
from services.rollouter.engine.factory import build_engine
from services.rollouter.policy_sync import PolicySync, no_memory
from services.rollouter.replica import Replica
from services.rollouter.servicer import RollouterServicer
from services.rollouter.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import grpc

    from services.common.telemetry.setup import Telemetry
    from services.common.types import Manifest
    from services.rollouter.config import ServiceConfig
    from services.rollouter.policy_sync import WeightMemory


async def serve(
    config: ServiceConfig,
    *,
    on_bound: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    telemetry: Telemetry | None = None,
    handle_signals: bool = True,
) -> None:
    """Run a rollouter until it is told to stop or the run has finished.

    Args:
        config: its settings.
        on_bound: called with the bound `host:port` when the engine is loaded.
        stop: set it to drain and end.
        telemetry: flushed at the end.
        handle_signals: off where several services share a process.

    Raises:
        ConfigError: the engine cannot be built, or the address cannot be bound.
        UnavailableError: the queue gave no answer for too long.
    """
    run = config.run
    stop = stop or asyncio.Event()
    async with AsyncExitStack() as stack:
        queue_channel = await stack.enter_async_context(open_channel(run.queue.address))
        reward_channel = await stack.enter_async_context(open_channel(run.reward.address))
        trainer_channel = await stack.enter_async_context(open_channel(run.trainer.address))
        queue = QueueClient(queue_channel, config.run_id)
        engine = build_engine(run.engine, run.model)
        sync = PolicySync(
            PolicyClient(trainer_channel, config.run_id),
            engine,
            replica_id=config.replica_id,
            make_memory=_memory_for(run.engine.kind),
            keep_running=run.async_.partial_rollout,
            pause=Backoff().pause,
        )
        runner = AttemptRunner(
            run_id=config.run_id,
            replica_id=config.replica_id,
            agent=SingleTurn(),
            scorer=RewardClient(reward_channel),
            explain=failure_of,
            score_seconds=config.score_seconds,
        )
        worker = Worker(queue, engine, sync, runner=runner, settings=config.worker, pause=Backoff().pause)
        replica = Replica(
            queue,
            engine,
            worker=worker,
            sync=sync,
            heartbeat_seconds=config.heartbeat_seconds,
            patience_seconds=config.patience_seconds,
            run_ended=lambda: _run_ended(folder_of(run)),
        )

        def register(server: grpc.aio.Server) -> None:
            add_servicer = rollouter_service_pb2_grpc.add_RollouterServiceServicer_to_server
            add_servicer(RollouterServicer(engine, replica, stop=stop.set), server)  # type: ignore[no-untyped-call]

        async def on_started(bound: str) -> None:
            replica.address = bound
            await engine.start()
            if on_bound is not None:
                on_bound(bound)

        async def stop_when_finished() -> None:
            await worker.finished.wait()
            stop.set()

        async def on_drain() -> None:
            await worker.drain()
            await replica.leave()

        stack.push_async_callback(engine.stop)
        await run_service(
            "rollouter",
            address=config.address,
            register=register,
            background=[sync.run, worker.run, replica.run, stop_when_finished],
            on_started=on_started,
            on_drain=on_drain,
            stop=stop,
            grace_seconds=config.grace_seconds,
            telemetry=telemetry,
            handle_signals=handle_signals,
        )
        if replica.problem is not None:
            raise replica.problem


def _run_ended(folder: Path) -> str:
    """Say that the run has ended, by what its folder shows; empty when it goes on or cannot be seen."""
    if not is_abandoned(folder):
        return ""
    how = "has finished" if is_finished(folder) else "was ended: no `headrace run` holds it any more"
    return f"the run in {folder} {how}; this rollouter ends too"


def _memory_for(engine_kind: str) -> Callable[[Manifest], WeightMemory]:
    """Choose where weights go; an engine that has none must not load torch."""
    if engine_kind == "scripted":
        return no_memory
    from services.rollouter.weight_memory import tensor_memory  # noqa: PLC0415 - loads torch

    return tensor_memory
