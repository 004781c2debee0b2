"""Measures the policy on held-out tasks, through the same queue and rollouters, without touching training.

The tasks go into the queue's validation partition, pinned to the version that is measured. Each measurement has tasks
of its own, numbered on from the last ones, so a measurement that a crash cut off is thrown away and begun anew.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from services.common.errors import InternalError
from services.common.types import GroupOutcome, GroupResult, Partition
from services.trainer.collecting import POLL_SECONDS, Patience, describe_failures, stall_error
from services.trainer.feeding import CHUNK_TASKS
from services.trainer.figures import mean

if TYPE_CHECKING:
    import asyncio

    from services.common.types import Group, Task
    from services.trainer.queue_link import QueueLink
    from services.trainer.tasks import TaskSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of one measurement."""

    step: int
    """Optimiser steps done before it."""
    version: int
    """Policy version that was measured."""
    pass_rate: float
    """Share of attempts whose reward reached the threshold, in [0, 1]."""
    reward_mean: float
    """Mean reward of the attempts."""
    num_tasks: int
    """Tasks with at least one scored attempt."""
    num_attempts: int
    """Scored attempts; failures are no attempts."""
    num_missing: int
    """Attempts that failed for good."""
    time: float
    """When it was done, seconds since the epoch."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


class Validator:
    """Measures held-out tasks.

    Example: `measurement = await validator.measure(version=12, step=12)`.
    """

    def __init__(
        self,
        queue: QueueLink,
        source: TaskSource,
        *,
        group_size: int,
        pass_threshold: float,
        stall_seconds: float,
        stop: asyncio.Event,
    ) -> None:
        """Prepare.

        Args:
            queue: what carries the tasks.
            source: one task per held-out row.
            group_size: attempts per task.
            pass_threshold: reward from which on an attempt passed.
            stall_seconds: longest time without news.
            stop: ends a measurement early.
        """
        self._queue = queue
        self._source = source
        self._group_size = group_size
        self._pass_threshold = pass_threshold
        self._stall_seconds = stall_seconds
        self._stop = stop

    async def measure(self, *, version: int, step: int) -> Measurement | None:
        """Measure one version; `None` when it was asked to stop meanwhile.

        Raises:
            StalledError: nothing came for too long.
            InternalError: not a single attempt could be scored.
        """
        tasks = await self._tasks()
        num_tasks = len(tasks)
        await self._feed(tasks, version)
        wanted = {task.task_id for task in tasks}
        rewards: list[float] = []
        num_found = 0
        patience = Patience(stall_seconds=self._stall_seconds, clock=time.monotonic)
        num_ready = 1
        while wanted:
            if self._stop.is_set():
                return None
            answer = await self._queue.lease_batch(
                Partition.VALIDATION,
                num_groups=max(1, min(num_ready, len(wanted))),
                use_version=version,
                wait_seconds=min(POLL_SECONDS, self._stall_seconds),
            )
            num_ready = answer.num_ready
            fitting = [group for group in answer.groups if group.task_id in wanted]
            wanted -= {group.task_id for group in fitting}
            rewards += [trajectory.score.reward for group in fitting for trajectory in group.trajectories]
            num_found += len(fitting)
            await self._commit(answer.groups, fitting)
            if answer.end_of_data:
                break
            patience.news(got=bool(answer.groups), num_ready=answer.num_ready)
            if patience.exhausted:
                raise await stall_error(self._queue, self._stall_seconds, wanted=1, partition=Partition.VALIDATION)
            if not answer.groups and patience.nudge_due():
                # A store that lost its last second may have lost these; what it has counts as accepted.
                await self._feed([task for task in tasks if task.task_id in wanted], version)
        if not rewards:
            failures = describe_failures(await self._queue.ledger(Partition.VALIDATION))
            raise InternalError(f"validation: none of {num_tasks} held-out tasks could be scored: {failures}")
        return Measurement(
            step=step,
            version=version,
            pass_rate=mean(float(reward >= self._pass_threshold) for reward in rewards),
            reward_mean=mean(rewards),
            num_tasks=num_found,
            num_attempts=len(rewards),
            num_missing=num_tasks * self._group_size - len(rewards),
            time=time.time(),
        )

    async def _tasks(self) -> list[Task]:
        """One task per held-out row, numbered on from the last measurement."""
        ledger = await self._queue.ledger(Partition.VALIDATION)
        first = ledger.tasks.fed - ledger.tasks.refilled
        return [self._source.task(sequence) for sequence in range(first, first + self._source.num_rows)]

    async def _feed(self, tasks: list[Task], version: int) -> None:
        """Feed tasks, the last of the measurement among them."""
        for start in range(0, len(tasks), CHUNK_TASKS):
            chunk = tasks[start : start + CHUNK_TASKS]
            accepted = await self._queue.enqueue(
                chunk,
                partition=Partition.VALIDATION,
                end_of_data=start + len(chunk) == len(tasks),
                pinned_version=version,
            )
            if accepted < len(chunk):
                raise InternalError(
                    f"the queue took {accepted} of {len(chunk)} validation tasks; lower validation.size or raise "
                    "queue.quota_open_tasks"
                )

    async def _commit(self, groups: tuple[Group, ...], fitting: list[Group]) -> None:
        """Account for the groups of one answer; those of an earlier measurement are left out of this one."""
        if not groups:
            return
        results = [
            GroupResult(
                task_id=group.task_id,
                attempt=group.attempt,
                outcome=GroupOutcome.CONSUMED if group in fitting else GroupOutcome.FILTERED,
            )
            for group in groups
        ]
        await self._queue.commit_once(results, partition=Partition.VALIDATION)
