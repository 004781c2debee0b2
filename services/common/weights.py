"""The byte stream of a policy version: digests, chunks to send, and a receiver that believes nothing unchecked.

A version is one stream of bytes: its tensors one after another, in the order of the manifest, without holes. This
module knows bytes and digests only; `services.common.tensors` builds manifests from torch tensors and gives the
receiver memory to write to. So a process that only verifies a stream never loads torch.

Example:
    for chunk in iter_chunks(buffers, offset=0):
        receiver.feed(chunk.offset, b"".join(chunk.parts))
    digest = receiver.finish()
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from services.common.types import Manifest, TensorSpec

CHUNK_BYTES = 2 * 1024 * 1024
"""Most bytes of one chunk; well under the message bound on both sides."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a version's stream, as views of the memory it lies in."""

    offset: int
    """Position of the first byte in the stream."""
    parts: tuple[memoryview, ...]
    """Consecutive bytes; several where the chunk spans several tensors."""

    @property
    def num_bytes(self) -> int:
        """Length of the chunk."""
        return sum(len(part) for part in self.parts)


def digest_bytes(data: memoryview) -> str:
    """Return the hex BLAKE2b-128 digest of one tensor's bytes."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def digest_version(tensors: Iterable[TensorSpec], tied: Mapping[str, str]) -> str:
    """Return the digest that names a version's exact content: names, types, shapes and bytes of every tensor."""
    total = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for spec in tensors:
        total.update(f"{spec.name}\0{spec.dtype}\0{spec.shape}\0{spec.digest}\n".encode())
    for name in sorted(tied):
        total.update(f"{name}\0{tied[name]}\n".encode())
    return total.hexdigest()


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        CorruptDataError: there is a hole or an overlap, a length is wrong, or the digest is not that of its tensors.
    """
    position = 0
    for spec in manifest.tensors:
        if spec.offset != position or spec.num_bytes < 0:
            raise CorruptDataError(
                f"version {manifest.version}: tensor {spec.name} begins at byte {spec.offset} and the one before it "
                f"ends at {position}; the manifest has a hole or an overlap",
                version=str(manifest.version),
            )
        position += spec.num_bytes
    if position != manifest.total_bytes:
        raise CorruptDataError(
            f"version {manifest.version}: the manifest announces {manifest.total_bytes} bytes and its tensors have "
            f"{position}",
            version=str(manifest.version),
        )
    digest = digest_version(manifest.tensors, manifest.tied)
    if digest != manifest.digest:
        raise CorruptDataError(
            f"version {manifest.version}: the manifest's digest is {manifest.digest} and its tensors give {digest}",
            version=str(manifest.version),
        )


def iter_chunks(buffers: Sequence[memoryview], *, offset: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Cut the stream that `buffers` form into chunks, from `offset` on, without copying.

    Raises:
        InvalidInputError: `offset` lies outside the stream.
    """
    total = sum(len(buffer) for buffer in buffers)
    if not 0 <= offset <= total:
        raise InvalidInputError(f"offset {offset} lies outside the stream of {total} bytes")
    parts: list[memoryview] = []
    room = chunk_bytes
    start = offset
    skip = offset
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
            continue
        rest = buffer[skip:]
        skip = 0
        while rest:
            part, rest = rest[:room], rest[room:]
            parts.append(part)
            room -= len(part)
            if room == 0:
                yield Chunk(offset=start, parts=tuple(parts))
                start += chunk_bytes
                parts, room = [], chunk_bytes
    if parts:
        yield Chunk(offset=start, parts=tuple(parts))


class Receiver:
    """Takes a version's stream in order, writes it where it belongs and checks each tensor as soon as it is whole.

    A broken connection costs nothing: the next stream starts at `offset`. Not for use by two threads at once.
    """

    def __init__(self, manifest: Manifest, buffers: Mapping[str, memoryview] | None = None) -> None:
        """Wait for the first byte.

        Args:
            manifest: what is to come.
            buffers: writable memory for each tensor by name; None verifies the bytes and keeps nothing.

        Raises:
            CorruptDataError: the manifest contradicts itself.
        """
        check_manifest(manifest)
        self._manifest = manifest
        self._buffers = buffers
        self._index = 0
        self._position = 0
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._close_tensors()

    @property
    def offset(self) -> int:
        """Bytes received so far; where a resumed stream starts."""
        return self._position

    @property
    def complete(self) -> bool:
        """Whether every tensor came and matched its digest."""
        return self._index == len(self._manifest.tensors)

    def feed(self, offset: int, data: bytes | memoryview) -> None:
        """Take the next bytes. Copies and hashes, so it belongs into a thread when there are many.

        Raises:
            CorruptDataError: bytes are missing, repeated or too many, or a tensor does not match its digest; names it.
        """
        view = memoryview(data)
        end = offset + len(view)
        if offset != self._position or end > self._manifest.total_bytes:
            raise CorruptDataError(
                f"version {self._manifest.version}: got bytes {offset} to {end} of {self._manifest.total_bytes} "
                f"where byte {self._position} was next",
                version=str(self._manifest.version),
            )
        while view:
            spec = self._manifest.tensors[self._index]
            begin = self._position - spec.offset
            part, view = view[: spec.num_bytes - begin], view[spec.num_bytes - begin :]
            if self._buffers is not None:
                self._buffers[spec.name][begin : begin + len(part)] = part
            self._hash.update(part)
            self._position += len(part)
            self._close_tensors()

    def finish(self) -> str:
        """Return the version's digest; it is that of the bytes received, since every tensor was checked.

        Raises:
            CorruptDataError: the stream ended early.
        """
        if not self.complete:
            raise CorruptDataError(
                f"version {self._manifest.version}: the stream ended at byte {self._position} of "
                f"{self._manifest.total_bytes}",
                version=str(self._manifest.version),
            )
        return self._manifest.digest

    def _close_tensors(self) -> None:
        """Check every tensor that ends at the present position; empty ones end where they begin."""
        tensors = self._manifest.tensors
        while self._index < len(tensors):
            spec = tensors[self._index]
            if spec.offset + spec.num_bytes > self._position:
                return
            digest = self._hash.hexdigest()
            if digest != spec.digest:
                raise CorruptDataError(
                    f"version {self._manifest.version}: tensor {spec.name} has digest {digest} and the manifest says "
                    f"{spec.digest}",
                    version=str(self._manifest.version),
                    tensor=spec.name,
                )
            self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            self._index += 1
