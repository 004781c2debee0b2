"""What a batch says of itself: rewards, tokens, and how old its tokens are. Pure functions.

Staleness of a token is the newest assigned version when the optimiser uses it minus the version that sampled it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.common.types import Group, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """Figures of the groups of one step."""

    num_groups: int
    """Groups."""
    num_trajectories: int
    """Trajectories."""
    num_tokens: int
    """Sampled tokens."""
    reward_mean: float
    """Mean reward of the trajectories."""
    pass_rate: float
    """Share of trajectories whose reward reached the threshold, in [0, 1]."""
    staleness_mean: float
    """Mean over sampled tokens, versions."""
    staleness_max: int
    """Largest of any sampled token, versions."""


def batch_figures(groups: Sequence[Group], *, version: int, pass_threshold: float) -> BatchFigures:
    """Compute the figures of a batch that is used at `version`."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    spans = [span for trajectory in trajectories for row in trajectory.rows for span in row.version_spans]
    num_tokens = sum(span.end - span.start for span in spans)
    aged_tokens = sum((version - span.version) * (span.end - span.start) for span in spans)
    return BatchFigures(
        num_groups=len(groups),
        num_trajectories=len(trajectories),
        num_tokens=num_tokens,
        reward_mean=mean(trajectory.score.reward for trajectory in trajectories),
        pass_rate=mean(float(trajectory.score.reward >= pass_threshold) for trajectory in trajectories),
        staleness_mean=aged_tokens / num_tokens if num_tokens else 0.0,
        staleness_max=max((version - span.version for span in spans), default=0),
    )


def check_age(groups: Sequence[Group], *, version: int, max_staleness: int) -> None:
    """Make sure that no token is older than the bound when it is used, whatever the queue said.

    Raises:
        InternalError: a token is too old, or newer than the policy itself; names the trajectory.
    """
    for group in groups:
        for trajectory in group.trajectories:
            for row in trajectory.rows:
                for span in row.version_spans:
                    if not 0 <= version - span.version <= max_staleness:
                        raise InternalError(
                            f"trajectory {trajectory.key} has tokens of version {span.version}, to be used at version "
                            f"{version} with a bound of {max_staleness}; the queue must not hand it out"
                        )


def staleness(trajectory: Trajectory, *, version: int) -> int:
    """Age of a trajectory's oldest token when it is used at `version`."""
    return version - trajectory.oldest_version


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
