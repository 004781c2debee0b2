"""Protobuf's wire form written by hand, for messages that are mostly bulk bytes.

A protobuf object copies its bytes when it is built, when it is put into another one, and when it is serialized. The
pieces that these functions return are joined once. Fields may come in any order on the wire, so a message can be
serialized without its bulk field and that field appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Piece = bytes | bytearray | memoryview
"""Bytes that are not copied until they are joined."""

_VARINT_BITS = 7
_VARINT_MASK = 0x7F
_VARINT_MORE = 0x80
_LENGTH_DELIMITED = 2


def append_varint(out: bytearray, value: int) -> None:
    """Write an unsigned number in base 128, lowest group first."""
    while value > _VARINT_MASK:
        out.append(value & _VARINT_MASK | _VARINT_MORE)
        value >>= _VARINT_BITS
    out.append(value)


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and where the next byte is; a cut-off number counts as what is there."""
    value, shift = 0, 0
    for index in range(position, len(view)):
        value |= (view[index] & _VARINT_MASK) << shift
        if not view[index] & _VARINT_MORE:
            return value, index + 1
        shift += _VARINT_BITS
    return value, len(view)


def frame(number: int, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Return the pieces of a field of bytes, or of a submessage, that consists of `pieces`.

    Args:
        number: of the field.
        pieces: its content.
    """
    head = bytearray()
    append_varint(head, number << 3 | _LENGTH_DELIMITED)
    append_varint(head, sum(map(len, pieces)))
    yield head
    yield from pieces
