from __future__ import annotations

import pytest
from headrace.v1 import queue_service_pb2

from services.common.convert.framing import append_varint, frame, read_varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**21, 2**63])
def test_a_number_is_read_as_it_was_written(value):
    out = bytearray(b"x")
    append_varint(out, value)
    assert read_varint(memoryview(out), 1) == (value, len(out))


@pytest.mark.parametrize("sizes", [[], [0], [1, 127], [128], [70_000, 3]])
def test_framed_bytes_are_the_message_that_protobuf_writes(sizes):
    payloads = [bytes([at]) * size for at, size in enumerate(sizes)]
    group = queue_service_pb2.LeasedGroup(task_id="t", trajectories=payloads)
    pieces = [queue_service_pb2.LeasedGroup(task_id="t").SerializeToString()]
    for payload in payloads:
        pieces += frame(queue_service_pb2.LeasedGroup.TRAJECTORIES_FIELD_NUMBER, [payload])
    assert b"".join(pieces) == group.SerializeToString()
    whole = b"".join(frame(queue_service_pb2.LeaseBatchResponse.GROUPS_FIELD_NUMBER, pieces))
    assert whole == queue_service_pb2.LeaseBatchResponse(groups=[group]).SerializeToString()
