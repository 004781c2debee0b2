"""Settings, accounts and depths of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.v1 import queue_service_pb2, task_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.types import (
    DropReason,
    GroupOutcome,
    GroupResult,
    Ledger,
    OnStale,
    Partition,
    PartitionStats,
    ReplicaId,
    ReplicaReport,
    ReplicaStatus,
    RunSettings,
    RunState,
    RunStats,
    TaskId,
    TaskLedger,
    TrajectoryLedger,
    WhenFull,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def partition_to_proto(partition: Partition) -> task_pb2.Partition:
    """Return the wire form of a partition."""
    wire: task_pb2.Partition = enum_to_proto(task_pb2.Partition, partition)
    return wire


def partition_from_proto(wire: int) -> Partition:
    """Return a partition."""
    return enum_from_proto(Partition, task_pb2.Partition, wire)


def settings_to_proto(settings: RunSettings) -> queue_service_pb2.RunSettings:
    """Return the wire form of a run's rules."""
    return queue_service_pb2.RunSettings(
        max_staleness=settings.max_staleness,
        groups_per_version=settings.groups_per_version,
        on_stale=enum_to_proto(queue_service_pb2.OnStale, settings.on_stale),
        max_member_issues=settings.max_member_issues,
        lease_seconds=settings.lease_seconds,
        max_queue_size=settings.max_queue_size,
        max_queue_bytes=settings.max_queue_bytes,
        when_full=enum_to_proto(queue_service_pb2.WhenFull, settings.when_full),
        min_group_members=settings.min_group_members,
    )


def settings_from_proto(wire: queue_service_pb2.RunSettings) -> RunSettings:
    """Return a run's rules."""
    return RunSettings(
        max_staleness=wire.max_staleness,
        groups_per_version=wire.groups_per_version,
        on_stale=enum_from_proto(OnStale, queue_service_pb2.OnStale, wire.on_stale),
        max_member_issues=wire.max_member_issues,
        lease_seconds=wire.lease_seconds,
        max_queue_size=wire.max_queue_size,
        max_queue_bytes=wire.max_queue_bytes,
        when_full=enum_from_proto(WhenFull, queue_service_pb2.WhenFull, wire.when_full),
        min_group_members=wire.min_group_members,
    )


def run_state_to_proto(state: RunState) -> queue_service_pb2.CreateRunResponse:
    """Return the wire form of where a run stands."""
    return queue_service_pb2.CreateRunResponse(
        epoch=state.epoch,
        commit_number=state.commit_number,
        policy_version=state.policy_version,
        replica_version=state.replica_version,
        created=state.created,
        run_finished=state.finished,
    )


def run_state_from_proto(wire: queue_service_pb2.CreateRunResponse) -> RunState:
    """Return where a run stands."""
    return RunState(
        epoch=wire.epoch,
        commit_number=wire.commit_number,
        policy_version=wire.policy_version,
        replica_version=wire.replica_version,
        created=wire.created,
        finished=wire.run_finished,
    )


def result_to_proto(result: GroupResult) -> queue_service_pb2.GroupResult:
    """Return the wire form of what a commit says of a group."""
    reason = None
    if result.drop_reason is not None:
        reason = enum_to_proto(queue_service_pb2.DropReason, result.drop_reason)
    return queue_service_pb2.GroupResult(
        task_id=result.task_id,
        attempt=result.attempt,
        outcome=enum_to_proto(queue_service_pb2.GroupOutcome, result.outcome),
        drop_reason=reason,
        sequence=result.sequence,
    )


def result_from_proto(wire: queue_service_pb2.GroupResult) -> GroupResult:
    """Return what a commit says of a group."""
    reason = enum_from_proto(DropReason, queue_service_pb2.DropReason, wire.drop_reason) if wire.drop_reason else None
    return GroupResult(
        task_id=TaskId(wire.task_id),
        attempt=wire.attempt,
        outcome=enum_from_proto(GroupOutcome, queue_service_pb2.GroupOutcome, wire.outcome),
        drop_reason=reason,
        sequence=wire.sequence if wire.HasField("sequence") else None,
    )


def replica_to_proto(status: ReplicaStatus, *, age_seconds: float = 0.0) -> queue_service_pb2.ReplicaStatus:
    """Return the wire form of what a replica says of itself."""
    return queue_service_pb2.ReplicaStatus(
        replica_id=status.replica_id,
        service=status.service,
        policy_version=status.policy_version,
        policy_digest=status.policy_digest,
        busy_slots=status.busy_slots,
        max_slots=status.max_slots,
        address=status.address,
        state=status.state,
        metrics=status.metrics,
        age_seconds=age_seconds,
    )


def replica_from_proto(wire: queue_service_pb2.ReplicaStatus) -> ReplicaStatus:
    """Return what a replica says of itself."""
    return ReplicaStatus(
        replica_id=ReplicaId(wire.replica_id),
        service=wire.service,
        policy_version=wire.policy_version,
        policy_digest=wire.policy_digest,
        busy_slots=wire.busy_slots,
        max_slots=wire.max_slots,
        address=wire.address,
        state=wire.state,
        metrics=dict(wire.metrics),
    )


def ledgers_to_proto(ledgers: Sequence[Ledger]) -> queue_service_pb2.GetLedgerResponse:
    """Return the wire form of the accounts of a run."""
    return queue_service_pb2.GetLedgerResponse(ledgers=[_ledger_to_proto(ledger) for ledger in ledgers])


def ledgers_from_proto(wire: queue_service_pb2.GetLedgerResponse) -> tuple[Ledger, ...]:
    """Return the accounts of a run."""
    return tuple(_ledger_from_proto(ledger) for ledger in wire.ledgers)


def _ledger_to_proto(ledger: Ledger) -> queue_service_pb2.Ledger:
    tasks, trajectories = ledger.tasks, ledger.trajectories
    return queue_service_pb2.Ledger(
        partition=partition_to_proto(ledger.partition),
        tasks=queue_service_pb2.TaskLedger(
            fed=tasks.fed,
            refilled=tasks.refilled,
            consumed=tasks.consumed,
            filtered=tasks.filtered,
            dropped=tasks.dropped,
            dead_lettered=tasks.dead_lettered,
            open=tasks.open,
        ),
        trajectories=queue_service_pb2.TrajectoryLedger(
            issued=trajectories.issued,
            put=trajectories.put,
            duplicate=trajectories.duplicate,
            lapsed=trajectories.lapsed,
            failed=trajectories.failed,
            released=trajectories.released,
            in_flight=trajectories.in_flight,
        ),
        trained_twice=ledger.trained_twice,
        commits=ledger.commits,
        first_open_sequence=ledger.first_open_sequence,
        ended_sequences=ledger.ended_sequences,
    )


def _ledger_from_proto(wire: queue_service_pb2.Ledger) -> Ledger:
    return Ledger(
        partition=partition_from_proto(wire.partition),
        tasks=TaskLedger(
            fed=wire.tasks.fed,
            refilled=wire.tasks.refilled,
            consumed=wire.tasks.consumed,
            filtered=wire.tasks.filtered,
            dropped=_counts(wire.tasks.dropped),
            dead_lettered=wire.tasks.dead_lettered,
            open=wire.tasks.open,
        ),
        trajectories=TrajectoryLedger(
            issued=wire.trajectories.issued,
            put=wire.trajectories.put,
            duplicate=wire.trajectories.duplicate,
            lapsed=wire.trajectories.lapsed,
            failed=_counts(wire.trajectories.failed),
            released=_counts(wire.trajectories.released),
            in_flight=wire.trajectories.in_flight,
        ),
        trained_twice=wire.trained_twice,
        commits=wire.commits,
        first_open_sequence=wire.first_open_sequence,
        ended_sequences=tuple(wire.ended_sequences),
    )


def _counts(wire: Mapping[str, int]) -> dict[str, int]:
    """Return a map in a fixed order; the wire keeps none."""
    return dict(sorted(wire.items()))


def stats_to_proto(stats: RunStats) -> queue_service_pb2.GetStatsResponse:
    """Return the wire form of depths, versions and replicas."""
    return queue_service_pb2.GetStatsResponse(
        partitions=[
            queue_service_pb2.PartitionStats(
                partition=partition_to_proto(depths.partition),
                pending_members=depths.pending_members,
                in_flight_members=depths.in_flight_members,
                open_groups=depths.open_groups,
                ready_groups=depths.ready_groups,
                leased_groups=depths.leased_groups,
                payload_bytes=depths.payload_bytes,
                held_for_groups=depths.held_for_groups,
                queued_bytes=depths.queued_bytes,
                data_ended=depths.data_ended,
                ask_age_seconds=depths.ask_age_seconds,
                commit_age_seconds=depths.commit_age_seconds,
            )
            for depths in stats.partitions
        ],
        policy_version=stats.policy_version,
        epoch=stats.epoch,
        commit_number=stats.commit_number,
        replicas=[replica_to_proto(report.status, age_seconds=report.age_seconds) for report in stats.replicas],
        run_finished=stats.run_finished,
        settings=settings_to_proto(stats.settings) if stats.settings else None,
    )


def stats_from_proto(wire: queue_service_pb2.GetStatsResponse) -> RunStats:
    """Return depths, versions and replicas."""
    return RunStats(
        partitions=tuple(
            PartitionStats(
                partition=partition_from_proto(depths.partition),
                pending_members=depths.pending_members,
                in_flight_members=depths.in_flight_members,
                open_groups=depths.open_groups,
                ready_groups=depths.ready_groups,
                leased_groups=depths.leased_groups,
                payload_bytes=depths.payload_bytes,
                held_for_groups=depths.held_for_groups,
                queued_bytes=depths.queued_bytes,
                data_ended=depths.data_ended,
                ask_age_seconds=depths.ask_age_seconds if depths.HasField("ask_age_seconds") else None,
                commit_age_seconds=depths.commit_age_seconds if depths.HasField("commit_age_seconds") else None,
            )
            for depths in wire.partitions
        ),
        policy_version=wire.policy_version,
        epoch=wire.epoch,
        commit_number=wire.commit_number,
        replicas=tuple(
            ReplicaReport(status=replica_from_proto(replica), age_seconds=replica.age_seconds)
            for replica in wire.replicas
        ),
        run_finished=wire.run_finished,
        settings=settings_from_proto(wire.settings) if wire.HasField("settings") else None,
    )
