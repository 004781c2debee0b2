"""Trajectories, rows, scores and failures. The one converter that needs NumPy."""

from __future__ import annotations

import numpy as np
from headrace.v1 import trajectory_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.score import score_from_proto, score_to_proto
from services.common.convert.task import key_from_proto, key_to_proto
from services.common.convert.times import time_from_proto, time_to_proto
from services.common.errors import InvalidInputError
from services.common.types import EndReason, LeaseId, ReplicaId, TokenRow, Trajectory, VersionSpan


def row_to_proto(row: TokenRow) -> trajectory_pb2.TokenRow:
    """Return the wire form of a row."""
    return trajectory_pb2.TokenRow(
        token_ids=np.ascontiguousarray(row.token_ids, dtype="<i4").tobytes(),
        loss_mask=np.ascontiguousarray(row.loss_mask, dtype=np.uint8).tobytes(),
        logprobs=np.ascontiguousarray(row.logprobs, dtype="<f4").tobytes(),
        version_spans=[
            trajectory_pb2.VersionSpan(start=span.start, end=span.end, version=span.version)
            for span in row.version_spans
        ],
    )


def row_from_proto(wire: trajectory_pb2.TokenRow) -> TokenRow:
    """Return a row.

    Raises:
        InvalidInputError: when the arrays differ in length.
    """
    token_ids = np.frombuffer(wire.token_ids, dtype="<i4")
    loss_mask = np.frombuffer(wire.loss_mask, dtype=np.uint8)
    logprobs = np.frombuffer(wire.logprobs, dtype="<f4")
    if not len(token_ids) == len(loss_mask) == len(logprobs):
        raise InvalidInputError(
            f"a row has {len(token_ids)} token ids, {len(loss_mask)} mask values and {len(logprobs)} log-probs; "
            "the three must be of one length"
        )
    return TokenRow(
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        version_spans=tuple(
            VersionSpan(start=span.start, end=span.end, version=span.version) for span in wire.version_spans
        ),
    )


def trajectory_to_proto(trajectory: Trajectory) -> trajectory_pb2.Trajectory:
    """Return the wire form of a trajectory."""
    return trajectory_pb2.Trajectory(
        key=key_to_proto(trajectory.key),
        lease_id=trajectory.lease_id,
        replica_id=trajectory.replica_id,
        sequence=trajectory.sequence,
        rows=[row_to_proto(row) for row in trajectory.rows],
        completion=trajectory.completion,
        end_reason=enum_to_proto(trajectory_pb2.EndReason, trajectory.end_reason),
        score=score_to_proto(trajectory.score),
        oldest_version=trajectory.oldest_version,
        newest_version=trajectory.newest_version,
        traceparent=trajectory.traceparent,
        start_time=time_to_proto(trajectory.start_time),
        end_time=time_to_proto(trajectory.end_time),
        metrics=trajectory.metrics,
    )


def trajectory_from_proto(wire: trajectory_pb2.Trajectory) -> Trajectory:
    """Return a trajectory."""
    return Trajectory(
        key=key_from_proto(wire.key),
        lease_id=LeaseId(wire.lease_id),
        replica_id=ReplicaId(wire.replica_id),
        sequence=wire.sequence,
        rows=tuple(row_from_proto(row) for row in wire.rows),
        completion=wire.completion,
        end_reason=enum_from_proto(EndReason, trajectory_pb2.EndReason, wire.end_reason),
        score=score_from_proto(wire.score),
        oldest_version=wire.oldest_version,
        newest_version=wire.newest_version,
        traceparent=wire.traceparent,
        start_time=time_from_proto(wire.start_time),
        end_time=time_from_proto(wire.end_time),
        metrics=dict(wire.metrics),
    )
