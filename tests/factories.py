"""Small builders for domain types; every argument has a default that works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.common.types import (
    EndReason,
    LeaseId,
    MemberKey,
    Message,
    Partition,
    ReplicaId,
    SamplingParams,
    Score,
    ScoringSpec,
    Task,
    TaskId,
    TokenRow,
    Trajectory,
    VersionSpan,
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
