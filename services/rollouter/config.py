"""What a rollouter is run with: the run's configuration, its own name, and the bounds that nobody needs to set."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.run_folder import find_run_id, folder_of
from services.common.types import ReplicaId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from services.common.config import RunConfig
    from services.common.types import RunId

REPLICA_ID_VARIABLE = "HEADRACE_REPLICA_ID"
"""Names the replica; each start of the process adds a suffix of its own."""

_MIN_FINISHING = 64
_REWARD_AWAY_SECONDS = 60.0
_INCARNATION_BYTES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Bounds and times of a worker."""

    max_staleness: int
    """Largest age of a trained token, in versions."""
    lease_seconds: float
    """Time after which an unrenewed lease lapses; it is renewed three times in that time."""
    max_finishing: int
    """Members that may wait for their score or for the queue; beyond it nothing new is leased."""
    lease_wait_seconds: float = 1.0
    """Longest long poll for members; a drain waits for it to end."""
    stale_check_seconds: float = 0.25
    """Time between two looks for members that cannot be in time."""
    drain_seconds: float = 6.0
    """Time in which members may still end after the wish to stop; the rest is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of one rollouter."""

    run: RunConfig
    """The run's configuration."""
    run_id: RunId
    """The run."""
    replica_id: ReplicaId
    """This process; another incarnation has another id."""
    worker: WorkerSettings
    """Bounds and times of the worker."""
    address: str = "127.0.0.1:0"
    """Where to listen; the port that was taken is reported in heartbeats."""
    score_seconds: float
    """Longest time for a score, retries included."""
    traces_path: Path | None = None
    """File that spans are appended to; None writes none."""
    heartbeat_seconds: float = 2.0
    """Time between two heartbeats."""
    grace_seconds: float = 9.0
    """Longest time from the wish to stop to the end."""
    patience_seconds: float = 300.0
    """Time without an answer of the queue after which the replica ends."""


def service_config(
    run: RunConfig, *, replica_id: str = "", address: str = "127.0.0.1:0", environment: Mapping[str, str] = os.environ
) -> ServiceConfig:
    """Take a rollouter's settings from the run's configuration.

    Args:
        run: the configuration.
        replica_id: name of the replica; empty takes the environment's, or host and process id.
        address: where to listen.
        environment: where run and replica may be named.
    """
    name = replica_id or environment.get(REPLICA_ID_VARIABLE) or f"{socket.gethostname()}-{os.getpid()}"
    incarnation = secrets.token_hex(_INCARNATION_BYTES)
    return ServiceConfig(
        run=run,
        run_id=find_run_id(run, environment),
        replica_id=ReplicaId(f"{name}-{incarnation}"),
        address=address,
        traces_path=folder_of(run) / "traces.jsonl" if run.telemetry.traces else None,
        score_seconds=run.reward.timeout_seconds + _REWARD_AWAY_SECONDS,
        patience_seconds=run.rollout.patience_seconds,
        worker=WorkerSettings(
            max_staleness=run.async_.max_staleness,
            lease_seconds=run.queue.lease_seconds,
            max_finishing=max(_MIN_FINISHING, 2 * run.engine.max_slots),
        ),
    )
