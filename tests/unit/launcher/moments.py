"""Small builders of snapshots."""

from services.common.types import (
    Ledger,
    Partition,
    PartitionStats,
    ReplicaId,
    ReplicaReport,
    ReplicaStatus,
    RunStats,
    TaskLedger,
    TrajectoryLedger,
)
from services.launcher.snapshot import Snapshot


def replica(name: str, *, service: str = "rollouter", **metrics: float) -> ReplicaReport:
    """What a replica said two seconds ago."""
    status = ReplicaStatus(
        replica_id=ReplicaId(name),
        service=service,
        policy_version=4,
        policy_digest="d",
        busy_slots=3,
        max_slots=8 if service == "rollouter" else 0,
        address="127.0.0.1:1",
        state="serving",
        metrics=metrics,
    )
    return ReplicaReport(status=status, age_seconds=2.0)


def moment(*replicas: ReplicaReport) -> Snapshot:
    """One moment with three ready training groups."""

    def part(partition: Partition, ready: int) -> PartitionStats:
        return PartitionStats(
            partition=partition,
            pending_members=0,
            in_flight_members=0,
            open_groups=0,
            ready_groups=ready,
            leased_groups=0,
            payload_bytes=0,
            held_for_groups=0,
        )

    tasks = TaskLedger(fed=43, refilled=3, consumed=40, filtered=0, dropped={"stale": 2}, dead_lettered=0, open=1)
    members = TrajectoryLedger(
        issued=172, put=168, duplicate=0, lapsed=2, failed={"engine_error": 1}, released={}, in_flight=1
    )
    ledger = Ledger(partition=Partition.TRAIN, tasks=tasks, trajectories=members, trained_twice=0, commits=10)
    stats = RunStats(
        partitions=(part(Partition.TRAIN, 3), part(Partition.VALIDATION, 5)),
        policy_version=5,
        epoch=1,
        commit_number=10,
        replicas=replicas,
        run_finished=False,
    )
    return Snapshot(stats=stats, ledgers=(ledger,))
