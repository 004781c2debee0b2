"""What the queue service is run with: the checked `[queue]` section. Rules of a run come with `CreateRun`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.common.errors import ConfigError
from services.queue.quotas import Quotas

if TYPE_CHECKING:
    from services.common.config import RunConfig

REDIS_URL_VARIABLE = "HEADRACE_REDIS_URL"
"""Environment variable that names the server when the config does not; the launcher sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of one queue service."""

    redis_url: str = field(repr=False)
    """The Redis or Valkey that holds all state; may hold a password, so it is never shown."""
    address: str = "127.0.0.1:0"
    """Where to listen."""
    patience_seconds: float = 150.0
    """Longest wait at start for a Redis that cannot be reached; below the time after which the launcher kills a service
    that does not serve, so that the service itself says what is wrong."""
    sample_ratio: float = 1.0
    """Share of trajectories that are traced, in [0, 1]; the queue names the traces, so it decides."""
    quotas: Quotas = field(default_factory=Quotas)
    """What one run may take."""


def service_config(config: RunConfig) -> ServiceConfig:
    """Take the service's settings from the run's config and the environment.

    Raises:
        ConfigError: nothing names a Redis.
    """
    redis_url = config.queue.redis_url.get_secret_value() or os.environ.get(REDIS_URL_VARIABLE, "")
    if not redis_url:
        raise ConfigError(
            f"queue.redis_url and {REDIS_URL_VARIABLE} are empty; set one to redis://host:port/0, "
            "or use `headrace run`, which starts a server"
        )
    return ServiceConfig(
        redis_url=redis_url,
        address=config.queue.address,
        sample_ratio=config.telemetry.sample_ratio if config.telemetry.traces else 0.0,
        quotas=Quotas(
            max_runs=config.queue.max_runs,
            bytes_per_run=config.queue.quota_bytes,
            open_tasks_per_run=config.queue.quota_open_tasks,
            keep_finished_seconds=config.queue.keep_finished_seconds,
        ),
    )
