"""Small builders for domain types; every argument has a default that works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.common.types import (
    EndReason,
    LeaseId,
    MemberKey,
    Message,
    OnStale,
    Partition,
    PartitionStats,
    ReplicaId,
    ReplicaReport,
    ReplicaStatus,
    RunSettings,
    RunStats,
    SamplingParams,
    Score,
    ScoringSpec,
    Task,
    TaskId,
    TokenRow,
    Trajectory,
    VersionSpan,
    WhenFull,
)


def make_task(sequence: int = 0, **changes) -> Task:
    task = Task(
        task_id=TaskId(f"{sequence:08d}"),
        partition=Partition.TRAIN,
        sequence=sequence,
        messages=(Message(role="user", content=f"What is {sequence} + 1?"),),
        group_size=2,
        sampling=SamplingParams(max_new_tokens=8),
        scoring=ScoringSpec(answer=str(sequence + 1)),
        seed=1,
    )
    return replace(task, **changes)


def make_row(num_prompt: int = 3, num_sampled: int = 2, version: int = 0) -> TokenRow:
    total = num_prompt + num_sampled
    mask = np.zeros(total, dtype=np.uint8)
    mask[num_prompt:] = 1
    logprobs = np.where(mask == 1, -0.5, 0.0).astype(np.float32)
    return TokenRow(
        token_ids=np.arange(total, dtype=np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        version_spans=(VersionSpan(start=num_prompt, end=total, version=version),),
    )


def make_trajectory(
    sequence: int = 0, member: int = 0, *, reward: float = 1.0, version: int = 0, **changes
) -> Trajectory:
    key = MemberKey(partition=Partition.TRAIN, task_id=TaskId(f"{sequence:08d}"), attempt=0, member=member)
    trajectory = Trajectory(
        key=key,
        lease_id=LeaseId(f"{key}/0"),
        replica_id=ReplicaId("replica-a"),
        sequence=sequence,
        rows=(make_row(version=version),),
        completion="1",
        end_reason=EndReason.STOP,
        score=Score(reward=reward, parts={"match": reward}, scorer="exact_match", scorer_version="1"),
        oldest_version=version,
        newest_version=version,
        traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
        start_time=1700000000.25,
        end_time=1700000001.5,
        metrics={"generate_seconds": 1.0},
    )
    return replace(trajectory, **changes)


def make_settings(**changes) -> RunSettings:
    settings = RunSettings(
        max_staleness=1,
        groups_per_version=4,
        on_stale=OnStale.REFILL,
        max_member_issues=4,
        lease_seconds=10.0,
        max_queue_size=8,
        max_queue_bytes=2**20,
        when_full=WhenFull.BLOCK,
        min_group_members=1,
    )
    return replace(settings, **changes)


def make_report(name: str, *, age_seconds: float = 1.0, **changes) -> ReplicaReport:
    status = ReplicaStatus(
        replica_id=ReplicaId(name),
        service="trainer" if name.startswith("trainer") else "rollouter",
        policy_version=3,
        policy_digest="d",
        busy_slots=2,
        max_slots=8,
        address="127.0.0.1:1",
        state="training" if name.startswith("trainer") else "serving",
    )
    return ReplicaReport(status=replace(status, **changes), age_seconds=age_seconds)


def make_stats(*replicas: ReplicaReport, settings: RunSettings | None = None, **train) -> RunStats:
    """A run whose training queue is empty, or as `train` says."""
    empty = PartitionStats(
        partition=Partition.TRAIN,
        pending_members=0,
        in_flight_members=0,
        open_groups=0,
        ready_groups=0,
        leased_groups=0,
        payload_bytes=0,
        held_for_groups=0,
    )
    return RunStats(
        partitions=(replace(empty, **train), replace(empty, partition=Partition.VALIDATION)),
        policy_version=3,
        epoch=1,
        commit_number=2,
        replicas=replicas,
        run_finished=False,
        settings=settings or make_settings(),
    )
