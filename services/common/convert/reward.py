"""Requests and answers of the reward service."""

from __future__ import annotations

from headrace.v1 import reward_service_pb2

from services.common.convert.task import messages_from_proto, messages_to_proto, scoring_from_proto, scoring_to_proto
from services.common.types import RunId, ScoreRequest, ScorerInfo


def request_to_proto(request: ScoreRequest, *, traceparent: str = "") -> reward_service_pb2.ScoreRequest:
    """Return the wire form of a request; `traceparent` is that of the trajectory's root span."""
    return reward_service_pb2.ScoreRequest(
        run_id=request.run_id,
        trajectory_id=request.trajectory_id,
        messages=messages_to_proto(request.messages),
        completion=request.completion,
        scoring=scoring_to_proto(request.scoring),
        traceparent=traceparent,
    )


def request_from_proto(wire: reward_service_pb2.ScoreRequest) -> ScoreRequest:
    """Return a request."""
    return ScoreRequest(
        run_id=RunId(wire.run_id),
        trajectory_id=wire.trajectory_id,
        messages=messages_from_proto(wire.messages),
        completion=wire.completion,
        scoring=scoring_from_proto(wire.scoring),
    )


def scorer_info_to_proto(info: ScorerInfo) -> reward_service_pb2.ScorerInfo:
    """Return the wire form of a scorer's description."""
    return reward_service_pb2.ScorerInfo(name=info.name, version=info.version, description=info.description)


def scorer_info_from_proto(wire: reward_service_pb2.ScorerInfo) -> ScorerInfo:
    """Return a scorer's description."""
    return ScorerInfo(name=wire.name, version=wire.version, description=wire.description)
