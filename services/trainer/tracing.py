"""The last two spans of each trajectory's trace: how long it waited in the queue, and the step that used it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from services.common.telemetry import names
from services.common.telemetry.trace import record_span
from services.trainer.figures import staleness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.trainer.collecting import Batch


def trace_batch(
    batch: Batch,
    *,
    advantages: Sequence[Sequence[float]],
    step: int,
    version: int,
    step_traceparent: str,
    step_time: float,
) -> None:
    """Close the trace of every trajectory that a step used.

    Args:
        batch: the groups of the step.
        advantages: one list per group, one number per trajectory.
        step: number of the step, from 1.
        version: policy version at which they were used.
        step_traceparent: the `train.step` span.
        step_time: when the step began, seconds since the epoch.
    """
    now = time.time()
    for group, group_advantages in zip(batch.groups, advantages, strict=True):
        for trajectory, put_time, advantage in zip(group.trajectories, group.put_times, group_advantages, strict=True):
            record_span(
                names.SPAN_QUEUE_WAIT,
                parent=trajectory.traceparent,
                start_time=put_time,
                end_time=batch.lease_time,
                attributes={names.TRAJECTORY_ID: str(trajectory.key)},
            )
            record_span(
                names.SPAN_TRAIN_CONSUME,
                parent=trajectory.traceparent,
                start_time=step_time,
                end_time=now,
                links=[step_traceparent],
                attributes={
                    names.TRAJECTORY_ID: str(trajectory.key),
                    names.STEP: step,
                    names.POLICY_VERSION: version,
                    names.STALENESS: staleness(trajectory, version=version),
                    names.ADVANTAGE: advantage,
                    names.REWARD: trajectory.score.reward,
                },
            )
