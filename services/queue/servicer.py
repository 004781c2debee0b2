"""The gRPC face of the store: translates, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from headrace.v1 import queue_service_pb2, queue_service_pb2_grpc, task_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.framing import frame
from services.common.convert.queue import (
    ledgers_to_proto,
    partition_from_proto,
    replica_from_proto,
    result_from_proto,
    run_state_to_proto,
    settings_from_proto,
    stats_to_proto,
)
from services.common.convert.runs import letters_to_proto, summary_to_proto
from services.common.convert.score import failure_from_proto
from services.common.convert.task import key_from_proto, key_to_proto
from services.common.convert.times import time_to_proto
from services.common.telemetry.trace import trajectory_traceparent
from services.common.types import LeaseId, ReleaseReason, RunId, TaskId
from services.queue.records import PutRecord, StoredTask

if TYPE_CHECKING:
    from services.common.convert.framing import Piece
    from services.queue.records import StoredAssignment, StoredAssignments, StoredBatch, StoredGroup
    from services.queue.store import QueueStore

    Context = grpc.aio.ServicerContext[Any, Any]

_FRAMED = {"LeaseTasks", "LeaseBatch"}


class QueueServicer(queue_service_pb2_grpc.QueueServiceServicer):
    """Serves `QueueService`."""

    def __init__(self, store: QueueStore) -> None:
        """Serve `store`."""
        self._store = store

    async def CreateRun(  # noqa: N802 - the proto's name
        self, request: queue_service_pb2.CreateRunRequest, context: Context
    ) -> queue_service_pb2.CreateRunResponse:
        """Create a run or take it over."""
        del context
        state = await self._store.runs.create(
            RunId(request.run_id), settings_from_proto(request.settings), owner_id=request.owner_id
        )
        return run_state_to_proto(state)

    async def EnqueueTasks(  # noqa: N802
        self, request: queue_service_pb2.EnqueueTasksRequest, context: Context
    ) -> queue_service_pb2.EnqueueTasksResponse:
        """Add tasks as far as the capacity rule admits."""
        del context
        enqueued = await self._store.tasks.enqueue(
            RunId(request.run_id),
            [_stored_task(task) for task in request.tasks],
            epoch=request.epoch,
            partition=partition_from_proto(request.partition),
            end_of_data=request.end_of_data,
            pinned_version=request.pinned_version if request.HasField("pinned_version") else None,
            num_filtered=request.num_filtered,
        )
        return queue_service_pb2.EnqueueTasksResponse(
            num_accepted=enqueued.num_accepted, remaining_capacity=enqueued.remaining_capacity
        )

    async def LeaseTasks(  # noqa: N802
        self, request: queue_service_pb2.LeaseTasksRequest, context: Context
    ) -> bytes:
        """Lease members to a rollouter; returns the response as it goes over the wire."""
        del context
        run_id = RunId(request.run_id)
        leased = await self._store.tasks.lease(
            run_id,
            max_members=request.max_members,
            policy_version=request.policy_version,
            wait_seconds=request.wait_seconds,
        )
        return _leased_tasks(run_id, leased)

    async def ExtendLease(  # noqa: N802
        self, request: queue_service_pb2.ExtendLeaseRequest, context: Context
    ) -> queue_service_pb2.ExtendLeaseResponse:
        """Renew leases."""
        del context
        lost = await self._store.tasks.extend(RunId(request.run_id), _lease_ids(request.lease_ids))
        return queue_service_pb2.ExtendLeaseResponse(lost_lease_ids=lost)

    async def ReleaseTasks(  # noqa: N802
        self, request: queue_service_pb2.ReleaseTasksRequest, context: Context
    ) -> queue_service_pb2.ReleaseTasksResponse:
        """Take leased members back."""
        del context
        reason = enum_from_proto(ReleaseReason, queue_service_pb2.ReleaseReason, request.reason)
        await self._store.tasks.release(RunId(request.run_id), _lease_ids(request.lease_ids), reason)
        return queue_service_pb2.ReleaseTasksResponse()

    async def PutTrajectories(  # noqa: N802
        self, request: queue_service_pb2.PutTrajectoriesRequest, context: Context
    ) -> queue_service_pb2.PutTrajectoriesResponse:
        """Put finished or failed members."""
        del context
        outcomes = await self._store.trajectories.put(
            RunId(request.run_id), [_put_record(record) for record in request.records]
        )
        return queue_service_pb2.PutTrajectoriesResponse(
            outcomes=[enum_to_proto(queue_service_pb2.PutOutcome, outcome) for outcome in outcomes]
        )

    async def LeaseBatch(  # noqa: N802
        self, request: queue_service_pb2.LeaseBatchRequest, context: Context
    ) -> bytes:
        """Lease whole groups to the trainer; returns the response as it goes over the wire."""
        del context
        batch = await self._store.batches.lease(
            RunId(request.run_id),
            epoch=request.epoch,
            partition=partition_from_proto(request.partition),
            num_groups=request.num_groups,
            use_version=request.use_version,
            request_id=request.request_id,
            max_bytes=request.max_bytes,
            wait_seconds=request.wait_seconds,
        )
        return _leased_batch(batch)

    async def CommitBatch(  # noqa: N802
        self, request: queue_service_pb2.CommitBatchRequest, context: Context
    ) -> queue_service_pb2.CommitBatchResponse:
        """Make consumption final."""
        del context
        commit_number = await self._store.batches.commit(
            RunId(request.run_id),
            [result_from_proto(result) for result in request.results],
            epoch=request.epoch,
            partition=partition_from_proto(request.partition),
            commit_number=request.commit_number,
            policy_version=request.policy_version,
            final=request.final,
        )
        return queue_service_pb2.CommitBatchResponse(commit_number=commit_number)

    async def ReleaseBatch(  # noqa: N802
        self, request: queue_service_pb2.ReleaseBatchRequest, context: Context
    ) -> queue_service_pb2.ReleaseBatchResponse:
        """Make leased groups ready again."""
        del context
        released = await self._store.batches.release(
            RunId(request.run_id), epoch=request.epoch, partition=partition_from_proto(request.partition)
        )
        return queue_service_pb2.ReleaseBatchResponse(num_released=released)

    async def RegisterVersion(  # noqa: N802
        self, request: queue_service_pb2.RegisterVersionRequest, context: Context
    ) -> queue_service_pb2.RegisterVersionResponse:
        """Register a policy version."""
        del context
        await self._store.runs.register_version(
            RunId(request.run_id),
            epoch=request.epoch,
            version=request.version,
            digest=request.digest,
            branch=request.branch,
        )
        return queue_service_pb2.RegisterVersionResponse()

    async def Heartbeat(  # noqa: N802
        self, request: queue_service_pb2.HeartbeatRequest, context: Context
    ) -> queue_service_pb2.HeartbeatResponse:
        """Keep what a replica says of itself."""
        del context
        finished = await self._store.runs.heartbeat(RunId(request.run_id), replica_from_proto(request.status))
        return queue_service_pb2.HeartbeatResponse(run_finished=finished)

    async def GetLedger(  # noqa: N802
        self, request: queue_service_pb2.GetLedgerRequest, context: Context
    ) -> queue_service_pb2.GetLedgerResponse:
        """Return the account of every partition."""
        del context
        account = await self._store.accounts.read(RunId(request.run_id))
        return ledgers_to_proto(account.ledgers)

    async def GetStats(  # noqa: N802
        self, request: queue_service_pb2.GetStatsRequest, context: Context
    ) -> queue_service_pb2.GetStatsResponse:
        """Return depths, versions and replicas."""
        del context
        account = await self._store.accounts.read(RunId(request.run_id))
        return stats_to_proto(account.stats)

    async def Reconcile(  # noqa: N802
        self, request: queue_service_pb2.ReconcileRequest, context: Context
    ) -> queue_service_pb2.ReconcileResponse:
        """Make the trainer's checkpoint the truth."""
        del context
        removed = await self._store.runs.reconcile(
            RunId(request.run_id),
            epoch=request.epoch,
            commit_number=request.commit_number,
            first_open_sequence=request.first_open_sequence,
            ended_sequences=request.ended_sequences,
            policy_version=request.policy_version,
            num_consumed=request.num_consumed,
            num_filtered=request.num_filtered,
            num_dropped=request.num_dropped,
        )
        return queue_service_pb2.ReconcileResponse(num_removed=removed)

    async def GetDeadLetters(  # noqa: N802
        self, request: queue_service_pb2.GetDeadLettersRequest, context: Context
    ) -> queue_service_pb2.GetDeadLettersResponse:
        """Return the newest dead-lettered groups."""
        del context
        letters = await self._store.accounts.dead_letters(RunId(request.run_id), max_letters=request.max_letters)
        return letters_to_proto(letters)

    async def ListRuns(  # noqa: N802
        self, request: queue_service_pb2.ListRunsRequest, context: Context
    ) -> queue_service_pb2.ListRunsResponse:
        """Return every run."""
        del request, context
        runs = await self._store.retirement.list_runs()
        return queue_service_pb2.ListRunsResponse(runs=[summary_to_proto(run) for run in runs])

    async def DeleteRun(  # noqa: N802
        self, request: queue_service_pb2.DeleteRunRequest, context: Context
    ) -> queue_service_pb2.DeleteRunResponse:
        """Delete a run."""
        del context
        deletion = await self._store.retirement.delete(RunId(request.run_id), force=request.force)
        return queue_service_pb2.DeleteRunResponse(num_keys=deletion.num_keys, complete=deletion.complete)


def _lease_ids(wire: Any) -> list[LeaseId]:  # noqa: ANN401 - a repeated field
    return [LeaseId(lease_id) for lease_id in wire]


def _stored_task(wire: task_pb2.Task) -> StoredTask:
    return StoredTask(
        task_id=TaskId(wire.task_id),
        partition=partition_from_proto(wire.partition),
        sequence=wire.sequence,
        group_size=wire.group_size,
        body=wire.SerializeToString(deterministic=True),
    )


def _put_record(wire: queue_service_pb2.TrajectoryRecord) -> PutRecord:
    has_failure = wire.WhichOneof("result") == "failure"
    return PutRecord(
        key=key_from_proto(wire.key),
        lease_id=LeaseId(wire.lease_id),
        payload=wire.trajectory,
        failure=failure_from_proto(wire.failure).reason if has_failure else None,
        oldest_version=wire.oldest_version,
    )


def _leased_tasks(run_id: RunId, leased: StoredAssignments) -> bytes:
    """Serialize a `LeaseTasksResponse`; the tasks in it stay the bytes that they are."""
    head = queue_service_pb2.LeaseTasksResponse(run_finished=leased.run_finished, wanted_version=leased.wanted_version)
    pieces: list[Piece] = [head.SerializeToString()]
    for item in leased.assignments:
        assignment = _assignment(run_id, item, leased.lease_seconds)
        pieces += frame(queue_service_pb2.LeaseTasksResponse.ASSIGNMENTS_FIELD_NUMBER, assignment)
    return b"".join(pieces)


def _assignment(run_id: RunId, stored: StoredAssignment, lease_seconds: float) -> list[Piece]:
    """Return the pieces of an `Assignment`."""
    head = task_pb2.Assignment(
        lease_id=stored.lease_id,
        key=key_to_proto(stored.key),
        issue=stored.issue,
        min_version=stored.min_version,
        lease_seconds=lease_seconds,
        traceparent=trajectory_traceparent(run_id, stored.key),
        enqueue_time=time_to_proto(stored.enqueue_time),
        issue_time=time_to_proto(stored.issue_time),
    )
    return [head.SerializeToString(), *frame(task_pb2.Assignment.TASK_FIELD_NUMBER, [stored.body])]


def _leased_batch(batch: StoredBatch) -> bytes:
    """Serialize a `LeaseBatchResponse`, copying the trajectories once."""
    head = queue_service_pb2.LeaseBatchResponse(
        end_of_data=batch.end_of_data, commit_number=batch.commit_number, num_ready=batch.num_ready
    )
    pieces: list[Piece] = [head.SerializeToString()]
    for group in batch.groups:
        pieces += frame(queue_service_pb2.LeaseBatchResponse.GROUPS_FIELD_NUMBER, _leased_group(group))
    return b"".join(pieces)


def _leased_group(stored: StoredGroup) -> list[Piece]:
    """Return the pieces of a `LeasedGroup`."""
    head = queue_service_pb2.LeasedGroup(
        task_id=stored.task_id,
        attempt=stored.attempt,
        sequence=stored.sequence,
        group_size=stored.group_size,
        oldest_version=stored.oldest_version,
        put_times=[time_to_proto(put_time) for put_time in stored.put_times],
    )
    pieces: list[Piece] = [head.SerializeToString()]
    for payload in stored.payloads:
        pieces += frame(queue_service_pb2.LeasedGroup.TRAJECTORIES_FIELD_NUMBER, [payload])
    return pieces


def add_queue_servicer(servicer: QueueServicer, server: grpc.aio.Server) -> None:
    """Register the service. Not the generated function, since leases are framed without a protobuf object."""
    service = queue_service_pb2.DESCRIPTOR.services_by_name["QueueService"]
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            # What is framed is bytes already.
            response_serializer=bytes
            if method.name in _FRAMED
            else GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
