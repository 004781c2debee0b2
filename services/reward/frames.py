"""How the service and its worker processes talk: length-prefixed JSON over the worker's own pipes."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from services.common.errors import InternalError

if TYPE_CHECKING:
    import asyncio
    from typing import BinaryIO

MAX_REPLY_BYTES = 1024 * 1024
"""Most that a worker may answer; scores are small."""

_LENGTH = struct.Struct(">Q")


def encode_frame(payload: dict[str, Any]) -> bytes:
    """Write `payload` as one frame; equal payloads give equal bytes."""
    body = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one frame, or return None where the stream has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return _decoded(body) if len(body) == length else None


async def receive_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read one frame of a worker; the caller sets the deadline.

    Raises:
        asyncio.IncompleteReadError: the worker is gone.
        InternalError: what it sent is no frame.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_REPLY_BYTES:
        raise InternalError(f"a scoring worker announced {length} bytes of at most {MAX_REPLY_BYTES}")
    return _decoded(await reader.readexactly(length))


def _decoded(body: bytes) -> dict[str, Any]:
    """Parse a frame's body."""
    try:
        payload = json.loads(body)
    except ValueError as error:
        raise InternalError("a scoring frame is not JSON") from error
    if not isinstance(payload, dict):
        raise InternalError(f"a scoring frame holds a {type(payload).__name__}, not an object")
    return payload
