"""What the trainer is run with: the run's configuration, its id, and where relative paths start. Loads no torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.run_folder import find_run_id
from services.common.types import OnStale, ReplicaId, RunSettings, WhenFull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.common.config import RunConfig
    from services.common.types import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of one trainer."""

    run: RunConfig
    """The run's configuration."""
    run_id: RunId
    """The run."""
    replica_id: ReplicaId
    """Name of this process in heartbeats."""
    folder: Path
    """Where relative paths of data files start."""
    traces_path: Path | None = None
    """File that spans are appended to; None writes none."""
    heartbeat_seconds: float = 2.0
    """Time between two heartbeats."""
    grace_seconds: float = 110.0
    """Longest time from the wish to stop to the end: a step, a checkpoint and a commit."""


def service_config(
    run: RunConfig, *, folder: Path = Path(), environment: Mapping[str, str] = os.environ
) -> ServiceConfig:
    """Take a trainer's settings from the run's configuration.

    Args:
        run: the configuration.
        folder: the config file's folder.
        environment: where the run may be named.
    """
    return ServiceConfig(
        run=run,
        run_id=find_run_id(run, environment),
        replica_id=ReplicaId(f"trainer-{socket.gethostname()}-{os.getpid()}"),
        folder=folder,
        traces_path=Path(run.run.directory) / run.run.name / "traces.jsonl" if run.telemetry.traces else None,
    )


def run_settings(run: RunConfig) -> RunSettings:
    """The rules that the queue keeps for the run."""
    return RunSettings(
        max_staleness=run.async_.max_staleness,
        groups_per_version=run.groups_per_version,
        on_stale=OnStale(run.async_.on_stale),
        max_member_issues=run.queue.max_member_issues,
        lease_seconds=run.queue.lease_seconds,
        max_queue_size=run.max_queue_size,
        max_queue_bytes=run.queue.max_queue_bytes,
        when_full=WhenFull(run.queue.when_full),
        min_group_members=run.algorithm.min_group_members,
    )
