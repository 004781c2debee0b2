from services.common.convert.rollouter import piece_from_proto, piece_to_proto, status_from_proto, status_to_proto
from services.common.types import CompletionPiece, EndReason, ReplicaId, ReplicaStatus


def test_pieces_survive_the_wire():
    for end_reason in (None, EndReason.STOP):
        piece = CompletionPiece(
            token_ids=(1, 2), logprobs=(-0.5, 0.0), policy_version=7, text="hi", end_reason=end_reason
        )
        assert piece_from_proto(piece_to_proto(piece)) == piece


def test_a_status_survives_the_wire_without_its_gauges():
    status = ReplicaStatus(
        replica_id=ReplicaId("r0"),
        service="rollouter",
        policy_version=-1,
        policy_digest="",
        busy_slots=1,
        max_slots=4,
        address="127.0.0.1:5",
        state="starting",
    )
    assert status_from_proto(status_to_proto(status), address="127.0.0.1:5") == status
