"""The typed client of the queue service, for one run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.v1 import queue_service_pb2, queue_service_pb2_grpc, trajectory_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.queue import (
    ledgers_from_proto,
    partition_to_proto,
    replica_to_proto,
    result_to_proto,
    run_state_from_proto,
    settings_to_proto,
    stats_from_proto,
)
from services.common.convert.runs import letters_from_proto
from services.common.convert.score import failure_to_proto
from services.common.convert.task import assignment_from_proto, key_to_proto, task_to_proto
from services.common.convert.times import time_from_proto
from services.common.convert.trajectory import trajectory_from_proto, trajectory_to_proto
from services.common.types import (
    Enqueued,
    FailedMember,
    Group,
    LeasedBatch,
    LeasedTasks,
    LeaseId,
    PutOutcome,
    TaskId,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from services.common.types import (
        DeadLetter,
        GroupResult,
        Ledger,
        Partition,
        ReleaseReason,
        ReplicaId,
        ReplicaStatus,
        RunId,
        RunSettings,
        RunState,
        RunStats,
        Task,
        Trajectory,
    )

_CALL_SECONDS = 15.0
_MARGIN_SECONDS = 15.0
"""On top of a long poll's own wait."""


class QueueClient:
    """The queue as one run's trainer, rollouters and watchers use it. It repeats no call; each says if that is safe.

    Example:
        queue = QueueClient(open_channel("127.0.0.1:50051"), RunId("demo"))
        leased = await queue.lease_tasks(replica_id, max_members=8, policy_version=3, wait_seconds=5.0)
    """

    def __init__(self, channel: grpc.aio.Channel, run_id: RunId) -> None:
        """Use a channel of `services.common.rpc.channel`; its owner closes it."""
        self._stub = queue_service_pb2_grpc.QueueServiceStub(channel)  # type: ignore[no-untyped-call]
        self._run_id = run_id

    async def create_run(self, settings: RunSettings, *, owner_id: str) -> RunState:
        """Create the run or take it over. Safe to retry with the same owner.

        Raises:
            ConflictError: the run exists with other settings.
        """
        request = queue_service_pb2.CreateRunRequest(
            run_id=self._run_id, settings=settings_to_proto(settings), owner_id=owner_id
        )
        return run_state_from_proto(await self._stub.CreateRun(request, timeout=_CALL_SECONDS))

    async def enqueue_tasks(
        self,
        tasks: Sequence[Task],
        *,
        epoch: int,
        partition: Partition,
        end_of_data: bool = False,
        pinned_version: int | None = None,
        num_filtered: int = 0,
    ) -> Enqueued:
        """Add tasks in order as far as capacity admits. Safe to retry.

        Args:
            tasks: in order of sequence.
            epoch: the caller's.
            partition: their stream.
            end_of_data: no task will follow these.
            pinned_version: for validation, oldest version that may sample them.
            num_filtered: leased groups that will be committed as filtered or dropped; they leave the capacity now.
        """
        request = queue_service_pb2.EnqueueTasksRequest(
            run_id=self._run_id,
            epoch=epoch,
            tasks=[task_to_proto(task) for task in tasks],
            partition=partition_to_proto(partition),
            end_of_data=end_of_data,
            pinned_version=pinned_version,
            num_filtered=num_filtered,
        )
        response = await self._stub.EnqueueTasks(request, timeout=_CALL_SECONDS)
        return Enqueued(num_accepted=response.num_accepted, remaining_capacity=response.remaining_capacity)

    async def lease_tasks(
        self, replica_id: ReplicaId, *, max_members: int, policy_version: int, wait_seconds: float
    ) -> LeasedTasks:
        """Lease members that `policy_version` may sample; waits for the first. A lost answer's leases lapse."""
        request = queue_service_pb2.LeaseTasksRequest(
            run_id=self._run_id,
            replica_id=replica_id,
            max_members=max_members,
            policy_version=policy_version,
            wait_seconds=wait_seconds,
        )
        response = await self._stub.LeaseTasks(request, timeout=wait_seconds + _MARGIN_SECONDS)
        return LeasedTasks(
            assignments=tuple(assignment_from_proto(assignment) for assignment in response.assignments),
            run_finished=response.run_finished,
            wanted_version=response.wanted_version if response.HasField("wanted_version") else None,
        )

    async def extend_lease(self, replica_id: ReplicaId, lease_ids: Sequence[LeaseId]) -> tuple[LeaseId, ...]:
        """Renew leases; returns those that are lost. Safe to retry."""
        request = queue_service_pb2.ExtendLeaseRequest(run_id=self._run_id, replica_id=replica_id, lease_ids=lease_ids)
        response = await self._stub.ExtendLease(request, timeout=_CALL_SECONDS)
        return tuple(LeaseId(lease_id) for lease_id in response.lost_lease_ids)

    async def release_tasks(self, lease_ids: Sequence[LeaseId], *, reason: ReleaseReason) -> None:
        """Give leased members back unfinished. Safe to retry."""
        request = queue_service_pb2.ReleaseTasksRequest(
            run_id=self._run_id,
            lease_ids=lease_ids,
            reason=enum_to_proto(queue_service_pb2.ReleaseReason, reason),
        )
        await self._stub.ReleaseTasks(request, timeout=_CALL_SECONDS)

    async def put_trajectories(self, results: Sequence[Trajectory | FailedMember]) -> tuple[PutOutcome, ...]:
        """Put finished or failed members; returns what became of each. Safe to retry."""
        request = await asyncio.to_thread(_put_request, self._run_id, results)
        response = await self._stub.PutTrajectories(request, timeout=_CALL_SECONDS)
        wire = queue_service_pb2.PutOutcome
        return tuple(enum_from_proto(PutOutcome, wire, outcome) for outcome in response.outcomes)

    async def lease_batch(
        self,
        *,
        epoch: int,
        partition: Partition,
        num_groups: int,
        use_version: int,
        wait_seconds: float,
        request_id: str,
        max_bytes: int = 0,
    ) -> LeasedBatch:
        """Lease whole groups in order of sequence; waits until enough are ready or the data has ended.

        Safe to retry with the same `request_id`, which returns what the lost answer leased.

        Args:
            epoch: the caller's.
            partition: the stream.
            num_groups: none is leased before so many are ready; `max_bytes` or the end of data may make it fewer.
            use_version: policy version at which they will be used.
            wait_seconds: longest wait, at most 30.
            request_id: random, at most 128 of A-Z a-z 0-9 . _ -
            max_bytes: most payload bytes in the answer; 0 is the queue's default.
        """
        request = queue_service_pb2.LeaseBatchRequest(
            run_id=self._run_id,
            epoch=epoch,
            partition=partition_to_proto(partition),
            num_groups=num_groups,
            use_version=use_version,
            wait_seconds=wait_seconds,
            max_bytes=max_bytes,
            request_id=request_id,
        )
        response = await self._stub.LeaseBatch(request, timeout=wait_seconds + _MARGIN_SECONDS)
        # Megabytes of tokens: not on the event loop.
        groups = await asyncio.to_thread(lambda: tuple(_group(group) for group in response.groups))
        return LeasedBatch(
            groups=groups,
            end_of_data=response.end_of_data,
            commit_number=response.commit_number,
            num_ready=response.num_ready,
        )

    async def commit_batch(
        self,
        results: Sequence[GroupResult],
        *,
        epoch: int,
        partition: Partition,
        commit_number: int,
        policy_version: int,
        final: bool = False,
    ) -> int:
        """Make consumption final; returns the number of the newest applied commit. Safe to retry (training only).

        Raises:
            ReconcileRequiredError: the number is neither the next one nor an earlier one.
        """
        request = queue_service_pb2.CommitBatchRequest(
            run_id=self._run_id,
            epoch=epoch,
            partition=partition_to_proto(partition),
            commit_number=commit_number,
            results=[result_to_proto(result) for result in results],
            policy_version=policy_version,
            final=final,
        )
        response = await self._stub.CommitBatch(request, timeout=_CALL_SECONDS)
        return int(response.commit_number)

    async def release_batch(self, *, epoch: int, partition: Partition) -> int:
        """Return all leased groups to the queue; returns how many. Safe to retry."""
        request = queue_service_pb2.ReleaseBatchRequest(
            run_id=self._run_id, epoch=epoch, partition=partition_to_proto(partition)
        )
        response = await self._stub.ReleaseBatch(request, timeout=_CALL_SECONDS)
        return int(response.num_released)

    async def register_version(self, version: int, *, epoch: int, digest: str, branch: bool = False) -> None:
        """Register a newly assigned policy version. Safe to retry with the same digest.

        Args:
            version: larger than any before.
            epoch: the caller's.
            digest: of its weights.
            branch: it is the first version of a trainer that resumed; capacity counts from it.
        """
        request = queue_service_pb2.RegisterVersionRequest(
            run_id=self._run_id, epoch=epoch, version=version, digest=digest, branch=branch
        )
        await self._stub.RegisterVersion(request, timeout=_CALL_SECONDS)

    async def heartbeat(self, status: ReplicaStatus) -> bool:
        """Report a state; returns whether the run has finished. Safe to retry."""
        request = queue_service_pb2.HeartbeatRequest(run_id=self._run_id, status=replica_to_proto(status))
        response = await self._stub.Heartbeat(request, timeout=_CALL_SECONDS)
        return bool(response.run_finished)

    async def get_ledger(self) -> tuple[Ledger, ...]:
        """Return the account of every partition. Safe to retry."""
        request = queue_service_pb2.GetLedgerRequest(run_id=self._run_id)
        return ledgers_from_proto(await self._stub.GetLedger(request, timeout=_CALL_SECONDS))

    async def get_dead_letters(self, *, max_letters: int) -> tuple[DeadLetter, ...]:
        """Return the newest tasks that were given up, newest first; at most 1000 are kept. Safe to retry."""
        request = queue_service_pb2.GetDeadLettersRequest(run_id=self._run_id, max_letters=max_letters)
        return letters_from_proto(await self._stub.GetDeadLetters(request, timeout=_CALL_SECONDS))

    async def get_stats(self) -> RunStats:
        """Return depths, versions and replicas. Safe to retry."""
        request = queue_service_pb2.GetStatsRequest(run_id=self._run_id)
        return stats_from_proto(await self._stub.GetStats(request, timeout=_CALL_SECONDS))

    async def reconcile(
        self,
        *,
        epoch: int,
        commit_number: int,
        first_open_sequence: int,
        ended_sequences: Sequence[int],
        policy_version: int,
        num_consumed: int,
        num_filtered: int,
        num_dropped: int,
    ) -> int:
        """Make the trainer's checkpoint the truth; returns how many tasks the queue removed. Safe to retry."""
        request = queue_service_pb2.ReconcileRequest(
            run_id=self._run_id,
            epoch=epoch,
            commit_number=commit_number,
            first_open_sequence=first_open_sequence,
            ended_sequences=ended_sequences,
            policy_version=policy_version,
            num_consumed=num_consumed,
            num_filtered=num_filtered,
            num_dropped=num_dropped,
        )
        response = await self._stub.Reconcile(request, timeout=_CALL_SECONDS)
        return int(response.num_removed)


def _put_request(
    run_id: RunId, results: Sequence[Trajectory | FailedMember]
) -> queue_service_pb2.PutTrajectoriesRequest:
    request = queue_service_pb2.PutTrajectoriesRequest(run_id=run_id)
    for result in results:
        # Filled in place: a record that is made apart is copied into the request.
        record = request.records.add(key=key_to_proto(result.key), lease_id=result.lease_id)
        if isinstance(result, FailedMember):
            record.failure.CopyFrom(failure_to_proto(result.failure))
        else:
            record.trajectory = trajectory_to_proto(result).SerializeToString()
            record.oldest_version = result.oldest_version
    return request


def _group(wire: queue_service_pb2.LeasedGroup) -> Group:
    return Group(
        task_id=TaskId(wire.task_id),
        attempt=wire.attempt,
        sequence=wire.sequence,
        group_size=wire.group_size,
        oldest_version=wire.oldest_version,
        trajectories=tuple(
            trajectory_from_proto(trajectory_pb2.Trajectory.FromString(payload)) for payload in wire.trajectories
        ),
        put_times=tuple(time_from_proto(stamp) for stamp in wire.put_times),
    )
