"""Every converter loses nothing: domain -> wire -> domain is the identity."""

from __future__ import annotations

import numpy as np
import pytest
from headrace.v1 import policy_pb2, task_pb2, trajectory_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.policy import manifest_from_proto, manifest_to_proto
from services.common.convert.score import failure_from_proto, failure_to_proto
from services.common.convert.task import assignment_from_proto, assignment_to_proto, task_from_proto, task_to_proto
from services.common.convert.trajectory import trajectory_from_proto, trajectory_to_proto
from services.common.errors import InvalidInputError
from services.common.types import (
    Assignment,
    DropReason,
    EndReason,
    Failure,
    FailureReason,
    GroupOutcome,
    LeaseId,
    Manifest,
    MemberKey,
    Partition,
    RunId,
    SamplingParams,
    TaskId,
    TensorSpec,
)
from tests.factories import make_task, make_trajectory


def test_a_task_survives_the_wire():
    task = make_task(
        7,
        sampling=SamplingParams(
            max_new_tokens=3, temperature=0.7, top_p=0.9, top_k=5, stop=("x",), stop_token_ids=(1,)
        ),
    )
    wire = task_pb2.Task.FromString(task_to_proto(task).SerializeToString())
    assert task_from_proto(wire) == task


def test_an_assignment_survives_the_wire():
    task = make_task(7)
    assignment = Assignment(
        lease_id=LeaseId("train/00000007/1/0/2"),
        key=MemberKey(partition=Partition.TRAIN, task_id=TaskId("00000007"), attempt=1, member=0),
        issue=2,
        task=task,
        min_version=4,
        lease_seconds=2.5,
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        enqueue_time=1700000000.125,
        issue_time=1700000001.5,
    )
    assert assignment_from_proto(assignment_to_proto(assignment)) == assignment


def test_a_trajectory_survives_the_wire_bit_for_bit():
    trajectory = make_trajectory(3, 1)
    wire = trajectory_pb2.Trajectory.FromString(trajectory_to_proto(trajectory).SerializeToString())
    back = trajectory_from_proto(wire)
    for name in ("key", "lease_id", "sequence", "score", "completion", "end_reason", "start_time", "metrics"):
        assert getattr(back, name) == getattr(trajectory, name)
    for mine, theirs in zip(trajectory.rows, back.rows, strict=True):
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.loss_mask, theirs.loss_mask)
        assert mine.logprobs.tobytes() == theirs.logprobs.tobytes()
        assert mine.version_spans == theirs.version_spans


def test_a_row_with_arrays_of_different_length_is_refused():
    wire = trajectory_to_proto(make_trajectory())
    wire.rows[0].logprobs = wire.rows[0].logprobs[:-4]
    with pytest.raises(InvalidInputError, match="5 token ids, 5 mask values and 4 log-probs"):
        trajectory_from_proto(wire)


def test_a_manifest_survives_the_wire():
    spec = TensorSpec(name="w", dtype="bfloat16", shape=(2, 3), offset=0, num_bytes=12, digest="ab")
    manifest = Manifest(
        run_id=RunId("r"),
        epoch=2,
        version=9,
        tensors=(spec,),
        tied={"head": "w"},
        total_bytes=12,
        digest="cd",
        traceparent="",
    )
    wire = policy_pb2.Manifest.FromString(manifest_to_proto(manifest).SerializeToString())
    assert manifest_from_proto(wire) == manifest


def test_a_failure_survives_the_wire():
    failure = Failure(reason=FailureReason.REWARD_TIMEOUT, message="no score in 10 s")
    assert failure_from_proto(failure_to_proto(failure)) == failure


@pytest.mark.parametrize("value", [0, 99])
def test_an_enum_value_without_a_meaning_is_refused(value):
    with pytest.raises(InvalidInputError, match=f"EndReason has no value {value}; known are STOP, LENGTH"):
        enum_from_proto(EndReason, trajectory_pb2.EndReason, value)


def test_every_enum_has_the_same_members_on_the_wire_and_in_memory():
    from headrace.v1 import queue_service_pb2

    pairs = [
        (Partition, task_pb2.Partition),
        (EndReason, trajectory_pb2.EndReason),
        (FailureReason, trajectory_pb2.FailureReason),
        (GroupOutcome, queue_service_pb2.GroupOutcome),
        (DropReason, queue_service_pb2.DropReason),
    ]
    for kind, wire in pairs:
        assert sorted(enum_to_proto(wire, member) for member in kind) == sorted(set(wire.values()) - {0})
