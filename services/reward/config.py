"""What the reward service is run with: the checked `[reward]` section and the bounds that nobody needs to set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.scoring import ScorerOptions, check_scorer

if TYPE_CHECKING:
    from services.common.config.serving import RewardSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of one reward service."""

    options: ScorerOptions
    """What scorers read."""
    address: str = "127.0.0.1:0"
    """Where to listen."""
    workers: int = 1
    """Worker processes, >= 1."""
    timeout_seconds: float = 10.0
    """Hard limit of one score, counted from when a worker takes it; > 0."""
    max_pending: int = 1024
    """Scores that may wait or run, >= 1."""
    max_remembered: int = 8192
    """Answers kept for repeated requests; far more than one fleet has in flight."""
    start_timeout_seconds: float = 60.0
    """Longest time that a worker may take to load its scorers."""


def service_config(section: RewardSection) -> ServiceConfig:
    """Take the service's settings from `[reward]`.

    Raises:
        ConfigError: the scorer or a pattern is wrong.
    """
    return ServiceConfig(
        options=check_scorer(section),
        address=section.address,
        workers=section.workers,
        timeout_seconds=section.timeout_seconds,
        max_pending=section.max_pending,
    )
