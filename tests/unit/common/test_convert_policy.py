import pytest
from headrace.v1 import policy_service_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.common.convert.policy import chunk_from_wire, chunk_to_wire
from services.common.errors import CorruptDataError
from services.common.weights import Chunk


@given(offset=st.integers(0, 2**63 - 1), parts=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4))
def test_a_chunk_is_plain_protobuf_in_both_directions(offset, parts):
    wire = chunk_to_wire(Chunk(offset=offset, parts=tuple(memoryview(part) for part in parts)))
    message = policy_service_pb2.StreamShardsResponse.FromString(wire)
    assert (message.offset, message.data) == (offset, b"".join(parts))
    assert wire == message.SerializeToString(deterministic=True)
    assert chunk_from_wire(wire) == (offset, b"".join(parts))


def test_fields_in_another_order_are_read_too():
    head = policy_service_pb2.StreamShardsResponse(offset=300).SerializeToString()
    data = policy_service_pb2.StreamShardsResponse(data=b"abc").SerializeToString()
    assert chunk_from_wire(data + head) == (300, b"abc")
    assert chunk_from_wire(head) == (300, b"")
    assert chunk_from_wire(b"") == (0, b"")


@pytest.mark.parametrize("wire", [b"\x12\xff\xff", b"\x08", b"\x12\x05ab"])
def test_bytes_that_are_no_message_are_refused(wire):
    with pytest.raises(CorruptDataError, match="are no StreamShardsResponse"):
        chunk_from_wire(wire)
