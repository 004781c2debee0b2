"""Scores and failures; apart from trajectories so that the reward and queue services need no NumPy."""

from __future__ import annotations

from headrace.v1 import trajectory_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.types import Failure, FailureReason, Score


def score_to_proto(score: Score) -> trajectory_pb2.Score:
    """Return the wire form of a score."""
    return trajectory_pb2.Score(
        reward=score.reward, parts=score.parts, scorer=score.scorer, scorer_version=score.scorer_version
    )


def score_from_proto(wire: trajectory_pb2.Score) -> Score:
    """Return a score."""
    return Score(reward=wire.reward, parts=dict(wire.parts), scorer=wire.scorer, scorer_version=wire.scorer_version)


def failure_to_proto(failure: Failure) -> trajectory_pb2.Failure:
    """Return the wire form of a failure."""
    reason = enum_to_proto(trajectory_pb2.FailureReason, failure.reason)
    return trajectory_pb2.Failure(reason=reason, message=failure.message)


def failure_from_proto(wire: trajectory_pb2.Failure) -> Failure:
    """Return a failure."""
    reason = enum_from_proto(FailureReason, trajectory_pb2.FailureReason, wire.reason)
    return Failure(reason=reason, message=wire.message)
