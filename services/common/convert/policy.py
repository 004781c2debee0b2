"""Manifests of policy versions, and the framing of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from headrace.v1 import policy_pb2, policy_service_pb2

from services.common.convert.framing import append_varint, read_varint
from services.common.errors import CorruptDataError
from services.common.types import Manifest, RunId, TensorSpec

if TYPE_CHECKING:
    from services.common.weights import Chunk

# Keys of `StreamShardsResponse` on the wire: field number << 3 | wire type.
_OFFSET_TAG = 1 << 3 | 0
_DATA_TAG = 2 << 3 | 2
_OFFSET_KEY = bytes([_OFFSET_TAG])
_DATA_KEY = bytes([_DATA_TAG])


def manifest_to_proto(manifest: Manifest) -> policy_pb2.Manifest:
    """Return the wire form of a manifest."""
    return policy_pb2.Manifest(
        run_id=manifest.run_id,
        epoch=manifest.epoch,
        version=manifest.version,
        tensors=[
            policy_pb2.TensorSpec(
                name=spec.name,
                dtype=spec.dtype,
                shape=spec.shape,
                offset=spec.offset,
                num_bytes=spec.num_bytes,
                digest=spec.digest,
            )
            for spec in manifest.tensors
        ],
        tied=manifest.tied,
        total_bytes=manifest.total_bytes,
        digest=manifest.digest,
        traceparent=manifest.traceparent,
    )


def manifest_from_proto(wire: policy_pb2.Manifest) -> Manifest:
    """Return a manifest."""
    return Manifest(
        run_id=RunId(wire.run_id),
        epoch=wire.epoch,
        version=wire.version,
        tensors=tuple(
            TensorSpec(
                name=spec.name,
                dtype=spec.dtype,
                shape=tuple(spec.shape),
                offset=spec.offset,
                num_bytes=spec.num_bytes,
                digest=spec.digest,
            )
            for spec in wire.tensors
        ),
        tied=dict(wire.tied),
        total_bytes=wire.total_bytes,
        digest=wire.digest,
        traceparent=wire.traceparent,
    )


def chunk_to_wire(chunk: Chunk) -> bytes:
    """Serialize a `StreamShardsResponse`, copying the bytes once.

    A protobuf object would copy them twice more; the wire form is the same, and any protobuf library reads it.
    """
    header = bytearray()
    if chunk.offset:
        header.append(_OFFSET_TAG)
        append_varint(header, chunk.offset)
    header.append(_DATA_TAG)
    append_varint(header, chunk.num_bytes)
    return b"".join((header, *chunk.parts))


def chunk_from_wire(wire: bytes) -> tuple[int, memoryview]:
    """Read a `StreamShardsResponse` without copying its bytes.

    Returns:
        The offset, and a view of the data.

    Raises:
        CorruptDataError: this is no such message.
    """
    view = memoryview(wire)
    position, offset = 0, 0
    if view[:1] == _OFFSET_KEY:
        offset, position = read_varint(view, 1)
    if view[position : position + 1] == _DATA_KEY:
        length, position = read_varint(view, position + 1)
        if position + length == len(view):
            return offset, view[position:]
    # Another writer may order or split fields otherwise, which protobuf allows.
    try:
        message = policy_service_pb2.StreamShardsResponse.FromString(wire)
    except DecodeError as error:
        raise CorruptDataError(f"{len(wire)} bytes of weights are no StreamShardsResponse: {error}") from error
    return message.offset, memoryview(message.data)
