"""Tasks, member keys and assignments."""

from __future__ import annotations

from headrace.v1 import task_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.times import time_from_proto, time_to_proto
from services.common.types import (
    Assignment,
    LeaseId,
    MemberKey,
    Message,
    Partition,
    SamplingParams,
    ScoringSpec,
    Task,
    TaskId,
)


def messages_to_proto(messages: tuple[Message, ...]) -> list[task_pb2.Message]:
    """Return the wire form of a conversation."""
    return [task_pb2.Message(role=message.role, content=message.content) for message in messages]


def messages_from_proto(wire: object) -> tuple[Message, ...]:
    """Return a conversation."""
    return tuple(Message(role=message.role, content=message.content) for message in wire)  # type: ignore[attr-defined]


def sampling_to_proto(sampling: SamplingParams) -> task_pb2.SamplingParams:
    """Return the wire form of sampling parameters."""
    return task_pb2.SamplingParams(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
    )


def sampling_from_proto(wire: task_pb2.SamplingParams) -> SamplingParams:
    """Return sampling parameters."""
    return SamplingParams(
        max_new_tokens=wire.max_new_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
    )


def scoring_to_proto(scoring: ScoringSpec) -> task_pb2.ScoringSpec:
    """Return the wire form of what is scored against."""
    return task_pb2.ScoringSpec(answer=scoring.answer, scorer=scoring.scorer, metadata_json=scoring.metadata_json)


def scoring_from_proto(wire: task_pb2.ScoringSpec) -> ScoringSpec:
    """Return what is scored against."""
    return ScoringSpec(answer=wire.answer, scorer=wire.scorer, metadata_json=wire.metadata_json or "{}")


def task_to_proto(task: Task) -> task_pb2.Task:
    """Return the wire form of a task."""
    return task_pb2.Task(
        task_id=task.task_id,
        partition=enum_to_proto(task_pb2.Partition, task.partition),
        sequence=task.sequence,
        messages=messages_to_proto(task.messages),
        group_size=task.group_size,
        sampling=sampling_to_proto(task.sampling),
        scoring=scoring_to_proto(task.scoring),
        seed=task.seed,
    )


def task_from_proto(wire: task_pb2.Task) -> Task:
    """Return a task."""
    return Task(
        task_id=TaskId(wire.task_id),
        partition=enum_from_proto(Partition, task_pb2.Partition, wire.partition),
        sequence=wire.sequence,
        messages=messages_from_proto(wire.messages),
        group_size=wire.group_size,
        sampling=sampling_from_proto(wire.sampling),
        scoring=scoring_from_proto(wire.scoring),
        seed=wire.seed,
    )


def key_to_proto(key: MemberKey) -> task_pb2.MemberKey:
    """Return the wire form of a member key."""
    partition = enum_to_proto(task_pb2.Partition, key.partition)
    return task_pb2.MemberKey(partition=partition, task_id=key.task_id, attempt=key.attempt, member=key.member)


def key_from_proto(wire: task_pb2.MemberKey) -> MemberKey:
    """Return a member key."""
    return MemberKey(
        partition=enum_from_proto(Partition, task_pb2.Partition, wire.partition),
        task_id=TaskId(wire.task_id),
        attempt=wire.attempt,
        member=wire.member,
    )


def assignment_to_proto(assignment: Assignment) -> task_pb2.Assignment:
    """Return the wire form of a lease."""
    return task_pb2.Assignment(
        lease_id=assignment.lease_id,
        key=key_to_proto(assignment.key),
        issue=assignment.issue,
        task=task_to_proto(assignment.task),
        min_version=assignment.min_version,
        lease_seconds=assignment.lease_seconds,
        traceparent=assignment.traceparent,
        enqueue_time=time_to_proto(assignment.enqueue_time),
        issue_time=time_to_proto(assignment.issue_time),
    )


def assignment_from_proto(wire: task_pb2.Assignment) -> Assignment:
    """Return a lease."""
    return Assignment(
        lease_id=LeaseId(wire.lease_id),
        key=key_from_proto(wire.key),
        issue=wire.issue,
        task=task_from_proto(wire.task),
        min_version=wire.min_version,
        lease_seconds=wire.lease_seconds,
        traceparent=wire.traceparent,
        enqueue_time=time_from_proto(wire.enqueue_time),
        issue_time=time_from_proto(wire.issue_time),
    )
