"""Finished members on their way to the queue: bounded, batched, and patient while the queue is away.

    consumes      add(): waits while the bound is reached, so attempts wait and no new member is leased; nor is one
                  while too many bytes wait
    waits for     the queue service; a put is idempotent, so it is repeated until it is answered
    unblocked by  the queue's return

Guarantee: one record that the queue refuses never holds up its neighbours.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError, NotFoundError, RunFinishedError
from services.common.telemetry import names, trace
from services.common.types import FailedMember, Failure, FailureReason, PutOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.types import Assignment, LeaseId, ReplicaId, Trajectory
    from services.rollouter.ports import TaskQueue

_MAX_BATCH = 64
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_MAX_WAITING_BYTES = 256 * 1024 * 1024
_UNKNOWN_RUN_SECONDS = 60.0

_log = structlog.get_logger("headrace.rollouter")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A result that is to be put."""

    assignment: Assignment
    """The lease that it was produced under."""
    result: Trajectory | FailedMember
    """What came of it."""
    ready_time: float
    """When it was ready, seconds since the epoch."""

    @property
    def num_bytes(self) -> int:
        """About the size of the result on the wire."""
        if isinstance(self.result, FailedMember):
            return len(self.result.failure.message)
        rows = sum(row.token_ids.nbytes + row.logprobs.nbytes + row.loss_mask.nbytes for row in self.result.rows)
        return rows + len(self.result.completion)


class Outbox:
    """Puts results, in order of their arrival.

    Example:
        outbox = Outbox(queue, replica_id=replica_id, max_records=256, pause=pause, on_settled=forget)
        await outbox.add(Finished(assignment=assignment, result=trajectory, ready_time=time.time()))
    """

    def __init__(
        self,
        queue: TaskQueue,
        *,
        replica_id: ReplicaId,
        max_records: int,
        pause: Callable[[int], float],
        on_settled: Callable[[LeaseId], None],
    ) -> None:
        """Start empty.

        Args:
            queue: where results go.
            replica_id: who puts them.
            max_records: results that may wait.
            pause: seconds to wait after so many failures in a row.
            on_settled: called when the queue has answered for a lease, or refused it for good.
        """
        self._queue = queue
        self._replica_id = replica_id
        self._records: asyncio.Queue[Finished] = asyncio.Queue(max_records)
        self._pause = pause
        self._on_settled = on_settled
        self.num_bytes = 0
        """Size of the results that wait or are on their way."""
        self.num_accepted = 0
        """Trajectories that the queue took since the start."""

    async def add(self, record: Finished) -> None:
        """Hand over a result; waits while too many are waiting."""
        await self._records.put(record)
        self.num_bytes += record.num_bytes

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait that no more work should be begun."""
        return self.num_bytes >= _MAX_WAITING_BYTES

    async def run(self) -> None:
        """Put what comes until cancelled."""
        while True:
            batch = [await self._records.get()]
            # A call of more bytes than a message may have would be refused for ever.
            while (
                len(batch) < _MAX_BATCH
                and sum(record.num_bytes for record in batch) < _MAX_BATCH_BYTES
                and not self._records.empty()
            ):
                batch.append(self._records.get_nowait())
            if not await self._put(batch):
                for record in batch:
                    if len(batch) == 1 or not await self._put([record]):
                        await self._put_refused(record)
            self.num_bytes -= sum(record.num_bytes for record in batch)

    async def _put(self, batch: list[Finished]) -> bool:
        """Put until there is an answer; returns False when the queue will never take it."""
        tries = 0
        clock = asyncio.get_running_loop().time
        started = clock()
        while True:
            try:
                outcomes = await self._queue.put_trajectories([record.result for record in batch])
            except RunFinishedError:
                self._settle(batch, [PutOutcome.DUPLICATE] * len(batch))
                return True
            except HeadraceError as error:
                # A queue that lost its memory does not know the run until the trainer has told it again.
                unknown = isinstance(error, NotFoundError) and clock() - started < _UNKNOWN_RUN_SECONDS
                if not error.retryable and not unknown:
                    _log.warning("the queue refused a put", records=len(batch), error=error.message)
                    return False
                tries += 1
                if tries == 1:
                    _log.warning("the queue is away, results wait", records=len(batch), error=error.message)
                await asyncio.sleep(self._pause(tries))
            except (TypeError, ValueError) as error:
                _log.warning("a result has no wire form", records=len(batch), error=str(error))
                return False
            else:
                self._settle(batch, outcomes)
                return True

    async def _put_refused(self, record: Finished) -> None:
        """Put a failure in place of a result that the queue will never take, so that the member is not waited for."""
        failure = Failure(reason=FailureReason.AGENT_ERROR, message="the queue refused the trajectory; see the log")
        lease_id = record.assignment.lease_id
        failed = FailedMember(key=record.assignment.key, lease_id=lease_id, failure=failure)
        substitute = Finished(assignment=record.assignment, result=failed, ready_time=record.ready_time)
        if not await self._put([substitute]):
            _log.error("the queue takes neither result nor failure; the lease will lapse", lease_id=lease_id)
            self._on_settled(lease_id)

    def _settle(self, batch: list[Finished], outcomes: list[PutOutcome] | tuple[PutOutcome, ...]) -> None:
        """Write the spans and forget the leases."""
        now = time.time()
        for record, outcome in zip(batch, outcomes, strict=True):
            trace.record_span(
                names.SPAN_QUEUE_PUT,
                parent=record.assignment.traceparent,
                start_time=record.ready_time,
                end_time=now,
                attributes={names.REPLICA_ID: self._replica_id},
            )
            # A member that will be issued again, or that somebody else finished, gets its root from that holder.
            self.num_accepted += outcome is PutOutcome.ACCEPTED
            if outcome in {PutOutcome.ACCEPTED, PutOutcome.GIVEN_UP}:
                self._record_root(record, now)
            self._on_settled(record.assignment.lease_id)

    def _record_root(self, record: Finished, end_time: float) -> None:
        """Write the root span of a trajectory that has ended."""
        assignment, result = record.assignment, record.result
        attributes: dict[str, str | int | float | None] = {
            names.TRAJECTORY_ID: str(assignment.key),
            names.TASK_ID: assignment.key.task_id,
            names.PARTITION: assignment.key.partition,
            names.SEQUENCE: assignment.task.sequence,
            names.ATTEMPT: assignment.key.attempt,
            names.MEMBER: assignment.key.member,
            names.ISSUE: assignment.issue,
            names.GROUP_SIZE: assignment.task.group_size,
            names.REPLICA_ID: self._replica_id,
        }
        failure = None
        if isinstance(result, FailedMember):
            failure = result.failure.message
            attributes[names.FAILURE_REASON] = result.failure.reason
        else:
            attributes |= {
                names.END_REASON: result.end_reason,
                names.REWARD: result.score.reward,
                names.POLICY_VERSION_OLDEST: result.oldest_version,
                names.POLICY_VERSION_NEWEST: result.newest_version,
                names.USAGE_OUTPUT_TOKENS: result.num_sampled_tokens,
            }
        trace.record_root(
            names.SPAN_TRAJECTORY,
            traceparent=assignment.traceparent,
            start_time=assignment.enqueue_time,
            end_time=end_time,
            attributes=attributes,
            failure=failure,
        )
