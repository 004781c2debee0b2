"""How a run stands, in sentences: who is silent, what is full, and who waits for whom.

Everything is told from one answer of `GetStats`, whose ages are by the Redis server's clock, so that a rollouter, the
trainer, the launcher and `headrace status` say the same in the same words.

    a producer that died    its last heartbeat is old and does not say `left`
    data that ended         the queue was told that no task follows
    a trainer that stopped  groups are ready and it has not asked for any for long
    a full queue            says which bound is reached, items or bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.types import Partition, WhenFull

if TYPE_CHECKING:
    from services.common.types import PartitionStats, ReplicaReport, RunStats

LEFT = "left"
"""State of a replica that gave everything back and ended."""
SILENT = "silent"
"""Shown in place of the last state of a replica that has not been heard of for longer than a lease."""

_LEAST_SILENT_SECONDS = 6.0
_SLOW_LEASES = 3
_LEAST_SLOW_SECONDS = 30.0
_MIB = 1024 * 1024


def silent_seconds(stats: RunStats) -> float:
    """Age of a heartbeat after which its sender counts as silent: a lease, and never less than three heartbeats."""
    return max(_LEAST_SILENT_SECONDS, stats.settings.lease_seconds if stats.settings else 0.0)


def state_of(report: ReplicaReport, stats: RunStats) -> str:
    """One word for what a replica is doing; `silent` when its last word is too old to believe."""
    if report.status.state != LEFT and report.age_seconds >= silent_seconds(stats):
        return SILENT
    return report.status.state


def describe_rollouters(stats: RunStats) -> str:
    """Each rollouter in a few words; says what is known when none is there."""
    reports = [report for report in stats.replicas if report.status.service == "rollouter"]
    return "; ".join(_describe_rollouter(report, stats) for report in reports) or "none is heard of, start one"


def describe_full(stats: RunStats) -> str:
    """Which bound of the training queue is reached; empty when none is."""
    train, settings = train_part(stats), stats.settings
    if train is None or settings is None:
        return ""
    if train.ready_groups >= settings.max_queue_size:
        return f"queue full: {train.ready_groups} of {settings.max_queue_size} groups (queue.max_queue_size)"
    if train.queued_bytes >= settings.max_queue_bytes:
        bound = f"{settings.max_queue_bytes / _MIB:,.1f} MiB (queue.max_queue_bytes)"
        return f"queue full: {train.queued_bytes / _MIB:,.1f} of {bound}"
    return ""


def describe_trainer(stats: RunStats) -> str:
    """Say by name that the trainer does not consume although groups are ready; empty when it does."""
    train, trainer = train_part(stats), newest_trainer(stats)
    if stats.run_finished or train is None or not train.ready_groups:
        return ""
    # One that has never asked yet is judged by its heartbeats alone.
    asked = train.ask_age_seconds or (trainer.age_seconds if trainer else 0.0)
    is_alive = trainer is not None and state_of(trainer, stats) != SILENT
    patience = silent_seconds(stats)
    if is_alive:
        # A long step is no failure; it is told, since it looks like one from everywhere else.
        patience = max(_LEAST_SLOW_SECONDS, _SLOW_LEASES * patience)
    if asked < patience:
        return ""
    name = trainer.status.replica_id if trainer else "the trainer"
    said = _last_said(trainer) if trainer else "it was never heard of"
    full = describe_full(stats)
    return (
        f"{name} has not consumed for {asked:.0f} s ({said}); {train.ready_groups} groups ready"
        f"{f', {full}' if full else ''}; see logs/trainer.log"
    )


def describe_idleness(stats: RunStats, *, policy_version: int) -> str:
    """Say why a rollouter gets no work.

    Args:
        stats: the run's.
        policy_version: what the rollouter serves.
    """
    train, trainer = train_part(stats), newest_trainer(stats)
    if stats.run_finished:
        return "the run has finished"
    if train is None:
        return "the run has no training tasks"
    stopped = describe_trainer(stats)
    if stopped:
        return stopped
    told = f"; {trainer.status.replica_id}: {_last_said(trainer)}" if trainer else "; no trainer is heard of"
    full = describe_full(stats)
    if full and stats.settings and stats.settings.when_full is WhenFull.BLOCK:
        return f"{full}{told}"
    if train.pending_members and stats.policy_version > policy_version:
        return f"version {stats.policy_version} is newest and {policy_version} is served here"
    if train.pending_members:
        return f"{train.pending_members} members wait for a version that is not there yet{told}"
    if train.data_ended:
        return f"the data has ended, and {train.in_flight_members} members are in flight elsewhere"
    return f"no task waits: the trainer feeds more when it has trained on what is ready ({train.ready_groups}){told}"


def train_part(stats: RunStats) -> PartitionStats | None:
    """Depths of the training stream."""
    return next((part for part in stats.partitions if part.partition is Partition.TRAIN), None)


def newest_trainer(stats: RunStats) -> ReplicaReport | None:
    """The trainer that was heard of last; one that it replaced may still be in the list."""
    trainers = (report for report in stats.replicas if report.status.service == "trainer")
    return min(trainers, key=lambda report: report.age_seconds, default=None)


def _describe_rollouter(report: ReplicaReport, stats: RunStats) -> str:
    status, state = report.status, state_of(report, stats)
    if state == LEFT:
        return f"{status.replica_id} left {report.age_seconds:.0f} s ago, told to stop"
    if state == SILENT:
        return f"{status.replica_id} is silent for {report.age_seconds:.0f} s: it died or hangs ({status.state} before)"
    return (
        f"{status.replica_id} {state} at version {status.policy_version}, {status.busy_slots}/{status.max_slots} slots "
        f"busy, heard {report.age_seconds:.0f} s ago"
    )


def _last_said(report: ReplicaReport) -> str:
    return f"state {report.status.state}, last heartbeat {report.age_seconds:.0f} s ago"
