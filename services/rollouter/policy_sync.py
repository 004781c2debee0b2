"""Keeps the engine at the newest policy version: watch, fetch, verify, adopt, report.

    watch    the trainer's version stream, reopened for ever; an older epoch or a smaller number is not believed
    fetch    manifest and bytes of the newest version while generation goes on; a broken stream resumes where it broke
    verify   each tensor's digest as it completes
    adopt    the engine switches between two tokens
    report   what is served now, with the digest of the bytes received

Guarantees: only whole, verified versions reach the engine; whatever fails leaves the old version serving and is tried
again after a pause. A version that is being fetched is finished even when a newer one is announced, so that a fast
trainer cannot starve a slow link; the newest one is next.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from services.common.errors import CorruptDataError, HeadraceError, NotFoundError
from services.common.telemetry import names, trace
from services.common.types import Adoption
from services.common.weights import Receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import torch

    from services.common.types import Manifest, ReplicaId

_MAX_ADOPTION_TIMES = 256

NO_VERSION = -1
"""What is known before the trainer has published anything."""

_log = structlog.get_logger("headrace.rollouter")


class PolicySource(Protocol):
    """Where versions come from: the trainer's `PolicyService`."""

    async def get_manifest(self, version: int | None = None) -> Manifest:
        """Return a version's manifest; None means the newest."""
        ...

    def watch_versions(self, replica_id: ReplicaId) -> AsyncIterator[tuple[int, int]]:
        """Yield (version, epoch) of the newest version now and at each change."""
        ...

    def stream_shards(self, version: int, *, offset: int) -> AsyncIterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) of a version."""
        ...

    async def report_adoption(self, adoption: Adoption) -> None:
        """Say what is served now."""
        ...


class Adopter(Protocol):
    """The part of the engine that changes versions."""

    @property
    def policy_version(self) -> int:
        """Version that is served."""
        ...

    async def adopt(
        self, version: int, digest: str, tensors: Mapping[str, torch.Tensor], *, keep_running: bool
    ) -> float:
        """Switch, and return the seconds in which no token could be sampled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightMemory:
    """Where a version's bytes go while they are received."""

    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What the engine adopts; empty for an engine that has no weights."""
    buffers: Mapping[str, memoryview] | None = None
    """Writable memory of those tensors; None verifies the bytes and keeps nothing."""


def no_memory(_manifest: Manifest) -> WeightMemory:
    """Keep nothing: for engines without weights, which need no torch."""
    return WeightMemory()


@dataclass(slots=True)
class _Transfer:
    """A version on its way."""

    manifest: Manifest
    """What comes."""
    memory: WeightMemory
    """Where it goes."""
    receiver: Receiver
    """How far it is."""
    received_bytes: int = 0
    """Bytes received, those of failed tries included."""


class PolicySync:
    """Follows the newest version for one replica.

    Example:
        sync = PolicySync(client, engine, replica_id=replica_id, make_memory=no_memory, keep_running=True, pause=pause)
        group.create_task(sync.run())
    """

    def __init__(
        self,
        source: PolicySource,
        engine: Adopter,
        *,
        replica_id: ReplicaId,
        make_memory: Callable[[Manifest], WeightMemory],
        keep_running: bool,
        pause: Callable[[int], float],
    ) -> None:
        """Know nothing yet.

        Args:
            source: where versions come from.
            engine: what adopts them.
            replica_id: who adopts.
            make_memory: makes room for a version.
            keep_running: running requests go on through an adoption; else the adoption waits for them.
            pause: seconds to wait after so many failures in a row.
        """
        self._source = source
        self._engine = engine
        self._replica_id = replica_id
        self._make_memory = make_memory
        self._keep_running = keep_running
        self._pause = pause
        self._epoch = 0
        self._newest_version = NO_VERSION
        self._news_time = 0.0
        self._news = asyncio.Event()
        self._adopted = asyncio.Event()
        self._adoption_times: OrderedDict[int, float] = OrderedDict()
        self._transfer: _Transfer | None = None
        self._last: Adoption | None = None

    @property
    def newest_version(self) -> int:
        """Newest version announced; `NO_VERSION` before the first."""
        return self._newest_version

    @property
    def last_adoption(self) -> Adoption | None:
        """The newest adoption of this process; None before the first."""
        return self._last

    def adoption_time(self, version: int) -> float | None:
        """When a version was adopted here, seconds since the epoch; None when it was not, or long ago."""
        return self._adoption_times.get(version)

    async def wait_version(self, version: int, *, timeout_seconds: float | None = None) -> bool:
        """Wait until the engine serves `version` or a newer one; returns whether it does.

        Args:
            version: the version.
            timeout_seconds: longest wait; None leaves the deadline to the caller.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._engine.policy_version < version:
                    await self._adopted.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follow the trainer until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._follow())

    async def _watch(self) -> None:
        """Hear of new versions; a trainer that is gone may come back, so there is no last try."""
        failures = 0
        while True:
            try:
                async for version, epoch in self._source.watch_versions(self._replica_id):
                    failures = 0
                    self._hear(version, epoch)
            except HeadraceError as error:
                if failures == 0:
                    _log.warning("no news of policy versions, will reconnect", error=error.message)
            failures += 1
            await asyncio.sleep(self._pause(failures))

    def _hear(self, version: int, epoch: int) -> None:
        """Believe news that does not go back."""
        if epoch < self._epoch or version < self._newest_version:
            _log.warning(
                "refused news of a policy version",
                version=version,
                epoch=epoch,
                newest_version=self._newest_version,
                newest_epoch=self._epoch,
            )
            return
        self._epoch = epoch
        if version > self._newest_version:
            self._newest_version = version
            self._news_time = asyncio.get_running_loop().time()
            self._news.set()

    async def _follow(self) -> None:
        """Adopt the newest version whenever there is a newer one."""
        failures = 0
        while True:
            if self._newest_version <= self._engine.policy_version:
                self._news.clear()
                await self._news.wait()
            try:
                await self._adopt_newest()
                failures = 0
            except HeadraceError as error:
                failures += 1
                if isinstance(error, CorruptDataError | NotFoundError):
                    self._transfer = None
                _log.warning(
                    "adoption failed, the old version goes on serving",
                    version=self._newest_version,
                    serving=self._engine.policy_version,
                    failures=failures,
                    error=error.message,
                )
                await asyncio.sleep(self._pause(failures))

    async def _adopt_newest(self) -> None:
        """Fetch, verify and adopt one version."""
        started = self._news_time
        transfer = await self._begin()
        manifest = transfer.manifest
        links = (manifest.traceparent,)
        attributes: dict[str, str | int] = {names.REPLICA_ID: self._replica_id, names.POLICY_VERSION: manifest.version}
        with trace.start_span(names.SPAN_POLICY_ADOPT, links=links, attributes=attributes) as span:
            digest = await self._receive(transfer)
            pause_seconds = await self._engine.adopt(
                manifest.version, digest, transfer.memory.tensors, keep_running=self._keep_running
            )
            self._transfer = None
            adoption = Adoption(
                replica_id=self._replica_id,
                version=manifest.version,
                digest=digest,
                pause_seconds=pause_seconds,
                total_seconds=asyncio.get_running_loop().time() - started,
                received_bytes=transfer.received_bytes,
            )
            span.set_attribute(names.POLICY_DIGEST, digest)
            span.set_attribute(names.PAUSE_SECONDS, pause_seconds)
            span.set_attribute(names.NUM_BYTES, adoption.received_bytes)
        self._last = adoption
        self._adoption_times[adoption.version] = time.time()
        while len(self._adoption_times) > _MAX_ADOPTION_TIMES:
            self._adoption_times.popitem(last=False)
        # Wakes every waiter once; the next adoption has an event of its own.
        self._adopted.set()
        self._adopted = asyncio.Event()
        _log.info(
            "adopted a policy version",
            version=adoption.version,
            digest=adoption.digest,
            pause_seconds=round(pause_seconds, 4),
            total_seconds=round(adoption.total_seconds, 3),
        )
        await self._report(adoption)

    async def _begin(self) -> _Transfer:
        """Return the transfer of the newest version; one that was interrupted goes on when it is the same content."""
        manifest = await self._source.get_manifest()
        if manifest.version < self._newest_version:
            # The answer was on its way when a newer version was announced.
            manifest = await self._source.get_manifest(self._newest_version)
        if manifest.epoch < self._epoch:
            raise NotFoundError(
                f"version {manifest.version} is of epoch {manifest.epoch}; epoch {self._epoch} has taken the run over"
            )
        self._hear(manifest.version, manifest.epoch)
        before = self._transfer
        if before is None or (before.manifest.version, before.manifest.digest) != (manifest.version, manifest.digest):
            memory = self._make_memory(manifest)
            receiver = Receiver(manifest, memory.buffers)
            self._transfer = _Transfer(manifest=manifest, memory=memory, receiver=receiver)
        assert self._transfer is not None
        return self._transfer

    async def _receive(self, transfer: _Transfer) -> str:
        """Take the rest of the bytes and return the digest. One chunk is hashed in a thread while the next arrives."""
        receiver = transfer.receiver
        if receiver.complete:
            return receiver.finish()
        loop = asyncio.get_running_loop()
        hashing: asyncio.Future[None] | None = None
        try:
            async for offset, data in self._source.stream_shards(transfer.manifest.version, offset=receiver.offset):
                transfer.received_bytes += len(data)
                if hashing is not None:
                    await hashing
                hashing = loop.run_in_executor(None, receiver.feed, offset, data)
        finally:
            # Also after a broken stream: what came is kept, and the next try goes on behind it.
            if hashing is not None:
                await hashing
        return receiver.finish()

    async def _report(self, adoption: Adoption) -> None:
        """Tell the trainer. It learns the same from heartbeats, so a failure here costs nothing."""
        try:
            await self._source.report_adoption(adoption)
        except HeadraceError as error:
            _log.warning("the adoption could not be reported", version=adoption.version, error=error.message)
