"""The policy versions that the trainer serves: the newest few, their bytes, and who has adopted what.

Guarantees: version numbers only grow; a version is visible as a whole or not at all; a stream that was begun ends with
the bytes it began with, even when its version is dropped meanwhile, since the chunks hold the memory. Lives on one
event loop; nothing here blocks, so hashing (`services.common.tensors.build_manifest`) comes before `publish`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.common.errors import CorruptDataError, InvalidInputError, NotFoundError
from services.common.tensors import stream_buffers
from services.common.weights import iter_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    import torch

    from services.common.types import Adoption, Manifest, ReplicaId, RunId
    from services.common.weights import Chunk

MAX_DIGESTS = 256
"""Newest versions whose adoption may still be reported; a replica reports one long after it was dropped."""
MAX_ADOPTIONS = 1024
"""Replicas whose newest report is kept; each restart of one is a new replica."""
NO_VERSION = -1
"""The newest version before the first is published."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """A version that can be fetched."""

    manifest: Manifest
    """What it consists of."""
    buffers: tuple[memoryview, ...]
    """Its stream, as views of the tensors."""


class PolicyStore:
    """Holds the newest versions of one run and tells watchers of each new one.

    Example:
        store = PolicyStore("demo", keep_versions=2)
        store.publish(manifest, weights.tensors)
    """

    def __init__(self, run_id: RunId, *, keep_versions: int) -> None:
        """Start empty.

        Args:
            run_id: the run whose versions these are.
            keep_versions: how many of the newest are held, at least 1.
        """
        self._run_id = run_id
        self._keep_versions = keep_versions
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._digests: dict[int, str] = {}
        self._adoptions: dict[ReplicaId, Adoption] = {}
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def newest_version(self) -> int:
        """Newest version that can be fetched; `NO_VERSION` before the first."""
        return next(reversed(self._held), NO_VERSION)

    @property
    def adoptions(self) -> dict[ReplicaId, Adoption]:
        """The newest report of each replica."""
        return dict(self._adoptions)

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make a version visible, drop the oldest one beyond the bound, and tell the watchers.

        Args:
            manifest: describes the version.
            tensors: what it describes; nobody may write to them any more.

        Raises:
            ValueError: the version does not grow, or belongs to another run.
        """
        if manifest.run_id != self._run_id or manifest.version <= self.newest_version:
            raise ValueError(
                f"version {manifest.version} of run {manifest.run_id} cannot follow version {self.newest_version} of "
                f"run {self._run_id}; numbers of one run only grow"
            )
        self._held[manifest.version] = _Held(manifest=manifest, buffers=stream_buffers(manifest, tensors))
        self._digests[manifest.version] = manifest.digest
        _keep_newest(self._digests, MAX_DIGESTS)
        while len(self._held) > self._keep_versions:
            self._held.popitem(last=False)
        self._notify()

    def manifest(self, run_id: str, version: int | None = None) -> Manifest:
        """Return the manifest of a version; None means the newest.

        Raises:
            NotFoundError: it is not held, or this is another run.
        """
        return self._find(run_id, self.newest_version if version is None else version).manifest

    def chunks(self, run_id: str, version: int, *, offset: int) -> Iterator[Chunk]:
        """Return the version's bytes from `offset` on; they stay readable when the version is dropped meanwhile.

        Raises:
            NotFoundError: it is not held, or this is another run.
            InvalidInputError: the offset lies outside the stream.
        """
        held = self._find(run_id, version)
        if offset > held.manifest.total_bytes:
            raise InvalidInputError(
                f"offset {offset} lies outside version {version}, which has {held.manifest.total_bytes} bytes"
            )
        return iter_chunks(held.buffers, offset=offset)

    async def watch(self, run_id: str) -> AsyncIterator[Manifest]:
        """Yield the newest version now and at each change, until the store is closed; what lies between is skipped.

        Raises:
            NotFoundError: this is another run.
        """
        self._check_run(run_id)
        sent = NO_VERSION
        while not self._closed:
            if self.newest_version > sent:
                sent = self.newest_version
                yield self._held[sent].manifest
            else:
                await self._changed.wait()

    def report_adoption(self, run_id: str, adoption: Adoption) -> None:
        """Note that a replica serves a version.

        Raises:
            NotFoundError: this trainer published no such version, or this is another run.
            CorruptDataError: the replica computed another digest.
        """
        self._check_run(run_id)
        digest = self._digests.get(adoption.version)
        if digest is None:
            raise NotFoundError(f"version {adoption.version} was not published by this trainer lately")
        if digest != adoption.digest:
            raise CorruptDataError(
                f"replica {adoption.replica_id} serves version {adoption.version} with digest {adoption.digest}; it "
                f"was published with {digest}",
                version=str(adoption.version),
            )
        self._adoptions.pop(adoption.replica_id, None)
        self._adoptions[adoption.replica_id] = adoption
        _keep_newest(self._adoptions, MAX_ADOPTIONS)

    def close(self) -> None:
        """End all watches; running streams end by themselves."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        """Wake every watcher once; the next change has an event of its own."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _check_run(self, run_id: str) -> None:
        """Refuse another run."""
        if run_id != self._run_id:
            raise NotFoundError(f"this trainer serves run {self._run_id!r}, not {run_id!r}")

    def _find(self, run_id: str, version: int) -> _Held:
        """Return a held version."""
        self._check_run(run_id)
        held = self._held.get(version)
        if held is None:
            known = ", ".join(str(number) for number in self._held) or "none yet"
            raise NotFoundError(f"version {version} is not held; held are: {known}", version=str(version))
        return held


def _keep_newest(entries: dict[Any, Any], bound: int) -> None:
    """Drop what was entered first, down to the bound."""
    while len(entries) > bound:
        del entries[next(iter(entries))]
