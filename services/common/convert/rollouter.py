"""Streamed completions and the status of a rollouter."""

from __future__ import annotations

from headrace.v1 import rollouter_service_pb2, trajectory_pb2

from services.common.convert.enums import enum_from_proto, enum_to_proto
from services.common.convert.task import messages_to_proto, sampling_to_proto
from services.common.types import CompletionPiece, EndReason, Message, ReplicaId, ReplicaStatus, SamplingParams


def generate_request(
    messages: tuple[Message, ...], sampling: SamplingParams, *, seed: int
) -> rollouter_service_pb2.GenerateRequest:
    """Return the wire form of a request for one completion."""
    return rollouter_service_pb2.GenerateRequest(
        messages=messages_to_proto(messages), sampling=sampling_to_proto(sampling), seed=seed
    )


def piece_to_proto(piece: CompletionPiece) -> rollouter_service_pb2.GenerateResponse:
    """Return the wire form of a piece."""
    wire = rollouter_service_pb2.GenerateResponse(
        token_ids=piece.token_ids, logprobs=piece.logprobs, policy_version=piece.policy_version, text=piece.text
    )
    if piece.end_reason is not None:
        wire.end_reason = enum_to_proto(trajectory_pb2.EndReason, piece.end_reason)
    return wire


def piece_from_proto(wire: rollouter_service_pb2.GenerateResponse) -> CompletionPiece:
    """Return a piece."""
    return CompletionPiece(
        token_ids=tuple(wire.token_ids),
        logprobs=tuple(wire.logprobs),
        policy_version=wire.policy_version,
        text=wire.text,
        end_reason=enum_from_proto(EndReason, trajectory_pb2.EndReason, wire.end_reason) if wire.end_reason else None,
    )


def status_to_proto(status: ReplicaStatus) -> rollouter_service_pb2.RollouterServiceGetStatusResponse:
    """Return the wire form of a replica's status; who asks knows its address already."""
    return rollouter_service_pb2.RollouterServiceGetStatusResponse(
        replica_id=status.replica_id,
        policy_version=status.policy_version,
        policy_digest=status.policy_digest,
        busy_slots=status.busy_slots,
        max_slots=status.max_slots,
        state=status.state,
    )


def status_from_proto(
    wire: rollouter_service_pb2.RollouterServiceGetStatusResponse, *, address: str = ""
) -> ReplicaStatus:
    """Return a replica's status.

    Args:
        wire: the answer.
        address: where it came from.
    """
    return ReplicaStatus(
        replica_id=ReplicaId(wire.replica_id),
        service="rollouter",
        policy_version=wire.policy_version,
        policy_digest=wire.policy_digest,
        busy_slots=wire.busy_slots,
        max_slots=wire.max_slots,
        address=address,
        state=wire.state,
    )
