import asyncio
import io
import math

import pytest

from services.common.errors import InternalError
from services.reward.frames import MAX_REPLY_BYTES, encode_frame, read_frame, receive_frame


def reader(data):
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return stream


async def test_a_frame_is_read_as_it_was_written():
    payload = {"text": "\u00fc\u4e2d \x00 \ud800", "number": 0.1, "list": [1, None]}
    frame = encode_frame(payload)
    assert read_frame(io.BytesIO(frame)) == payload
    assert await receive_frame(reader(frame)) == payload


def test_equal_payloads_give_equal_bytes():
    assert encode_frame({"a": 1, "b": 2}) == encode_frame({"b": 2, "a": 1})


def test_a_broken_off_frame_is_the_end():
    frame = encode_frame({"a": 1})
    for length in (0, 3, len(frame) - 1):
        assert read_frame(io.BytesIO(frame[:length])) is None


async def test_an_answer_that_is_too_long_or_no_object_is_refused():
    with pytest.raises(InternalError, match=str(MAX_REPLY_BYTES)):
        await receive_frame(reader((MAX_REPLY_BYTES + 1).to_bytes(8, "big")))
    with pytest.raises(InternalError, match="not JSON"):
        await receive_frame(reader((2).to_bytes(8, "big") + b"no"))
    with pytest.raises(InternalError, match="list"):
        await receive_frame(reader((2).to_bytes(8, "big") + b"[]"))


def test_numbers_survive_exactly():
    assert read_frame(io.BytesIO(encode_frame({"x": math.pi})))["x"] == math.pi
