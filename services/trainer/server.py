"""The wiring of the trainer: data, model, queue client, policy store, loop, and the common life cycle."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import torch
from headrace.v1 import trainer_service_pb2_grpc
from transformers.utils.logging import disable_progress_bar

from services.common.clients.queue import QueueClient
from services.common.rpc.channel import open_channel
from services.common.rpc.server import run_service
from services.trainer.backend.local import LearnerSettings, LocalBackend
from services.trainer.backend_thread import BackendThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.config import run_settings
from services.trainer.dataset import load_data
from services.trainer.heartbeat import Heartbeat
from services.trainer.loop import TrainingLoop
from services.trainer.model_source import resolve_model
from services.trainer.parts import LoopParts
from services.trainer.policy_servicer import PolicyServicer, add_policy_servicer
from services.trainer.policy_store import PolicyStore
from services.trainer.publishing import Publisher
from services.trainer.queue_link import QueueLink
from services.trainer.run_directory import RunDirectory
from services.trainer.servicer import TrainerServicer
from services.trainer.status import TrainerStatus
from services.trainer.tasks import training_tasks, validation_tasks
from services.trainer.versions import VersionFile

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from services.common.config import RunConfig
    from services.common.telemetry.setup import Telemetry
    from services.trainer.config import ServiceConfig


def show(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def serve(
    config: ServiceConfig,
    *,
    announce: Callable[[str], None] = show,
    on_bound: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    telemetry: Telemetry | None = None,
    handle_signals: bool = True,
) -> None:
    """Train until the run is done or the service is told to stop.

    Args:
        config: its settings.
        announce: shows a line to people.
        on_bound: called with the bound `host:port`.
        stop: set it to end after the running step.
        telemetry: flushed at the end.
        handle_signals: off where several services share a process.

    Raises:
        HeadraceError: the run cannot go on; the class says why.
    """
    stop = stop or asyncio.Event()
    thread = BackendThread()
    channel = open_channel(config.run.queue.address)
    store = PolicyStore(config.run_id, keep_versions=config.run.trainer.keep_versions)
    queue = QueueLink(QueueClient(channel, config.run_id), patience_seconds=config.run.trainer.stall_seconds)
    status = TrainerStatus(run_id=config.run_id, total_steps=config.run.trainer.total_steps)
    heartbeat = Heartbeat(queue, status, replica_id=config.replica_id, interval_seconds=config.heartbeat_seconds)
    ended = asyncio.Event()
    try:
        parts = await thread.run(
            _load, config, queue=queue, store=store, status=status, thread=thread, announce=announce
        )
        loop = TrainingLoop(parts, config=config.run, run_settings=run_settings(config.run))

        async def work() -> None:
            try:
                await loop.run()
                await heartbeat.beat()
            finally:
                ended.set()
            stop.set()

        def register(server: grpc.aio.Server) -> None:
            add_policy_servicer(PolicyServicer(store), server)
            add_servicer = trainer_service_pb2_grpc.add_TrainerServiceServicer_to_server
            add_servicer(TrainerServicer(status, stop=stop.set), server)  # type: ignore[no-untyped-call]

        async def on_started(bound: str) -> None:
            heartbeat.address = bound
            if on_bound is not None:
                on_bound(bound)

        async def on_drain() -> None:
            loop.request_stop()
            await ended.wait()
            store.close()

        await run_service(
            "trainer",
            address=config.run.trainer.address,
            register=register,
            background=[work, heartbeat.run],
            on_started=on_started,
            on_drain=on_drain,
            stop=stop,
            grace_seconds=config.grace_seconds,
            telemetry=telemetry,
            handle_signals=handle_signals,
        )
    finally:
        store.close()
        await asyncio.to_thread(thread.close)
        await channel.close(None)


def _load(
    config: ServiceConfig,
    *,
    queue: QueueLink,
    store: PolicyStore,
    status: TrainerStatus,
    thread: BackendThread,
    announce: Callable[[str], None],
) -> LoopParts:
    """Read the data and load the model; runs in the backend's thread."""
    disable_progress_bar()
    run = config.run
    data = load_data(run, folder=config.folder)
    folder = resolve_model(run, data, progress=announce)
    directory = RunDirectory.of(run)
    versions = VersionFile(directory.version_file)
    return LoopParts(
        queue=queue,
        backend=LocalBackend(folder, learner_settings(run)),
        thread=thread,
        publisher=Publisher(queue, store, versions, run_id=config.run_id),
        versions=versions,
        checkpoints=CheckpointStore(directory.checkpoints, keep=run.trainer.keep_checkpoints),
        source=training_tasks(run, data),
        held_out=validation_tasks(run, data),
        run_directory=directory,
        status=status,
        announce=announce,
    )


def learner_settings(run: RunConfig) -> LearnerSettings:
    """What an optimiser step needs, taken from the run's configuration."""
    trainer, algorithm = run.trainer, run.algorithm
    device = trainer.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return LearnerSettings(
        learning_rate=trainer.learning_rate,
        schedule=trainer.schedule,
        warmup_steps=trainer.warmup_steps,
        total_steps=trainer.total_steps,
        weight_decay=trainer.weight_decay,
        beta1=trainer.beta1,
        beta2=trainer.beta2,
        max_grad_norm=trainer.max_grad_norm,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        temperature=run.rollout.temperature,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        num_threads=trainer.threads or os.cpu_count() or 1,
        trust_remote_code=run.model.trust_remote_code,
        device=device,
    )
