"""Policy versions: assigned, described, registered, served.

Owns the order that makes a number mean one set of weights: the number is on disk before anybody hears of it, the queue
registers it before a replica can fetch it. Hashing runs beside training; the loop never has two unpublished snapshots.

    assign -> snapshot -> [manifest -> register -> serve]      the bracket runs beside the next step
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.common.telemetry import names
from services.common.telemetry.trace import span_traceparent, start_span
from services.common.tensors import build_manifest
from services.trainer.versions import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from services.common.types import Manifest, RunId
    from services.trainer.backend.port import PolicyWeights
    from services.trainer.queue_link import QueueLink
    from services.trainer.versions import VersionFile


class PolicyShelf(Protocol):
    """Where published versions are served from."""

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make a version visible as a whole."""
        ...


class Publisher:
    """Gives the policy its version numbers and makes them known.

    Example:
        version = await publisher.assign()
        await publisher.publish(await thread.run(backend.snapshot))
    """

    def __init__(self, queue: QueueLink, shelf: PolicyShelf, versions: VersionFile, *, run_id: RunId) -> None:
        """Prepare.

        Args:
            queue: where versions are registered.
            shelf: where they are served from.
            versions: the file of assigned numbers.
            run_id: the run.
        """
        self._queue = queue
        self._shelf = shelf
        self._versions = versions
        self._run_id = run_id
        self._branch = False
        self.version = NO_VERSION
        """Newest version that this trainer assigned."""
        self.digest = ""
        """Digest of the newest version that it published."""

    async def assign(self, *, above: int = NO_VERSION, branch: bool = False) -> int:
        """Take the next number; it is on disk when this returns.

        Args:
            above: a number seen elsewhere that it must exceed.
            branch: whether it is the first of a trainer that took a run over.
        """
        self.version = await asyncio.to_thread(self._versions.assign, above=above)
        self._branch = branch
        return self.version

    async def publish(self, weights: PolicyWeights, *, after_step: str | None = None) -> None:
        """Describe, register and serve the newest assigned version.

        Args:
            weights: its snapshot.
            after_step: traceparent of the `train.step` that it follows.
        """
        version = self.version
        with start_span(
            names.SPAN_POLICY_PUBLISH,
            links=[after_step] if after_step else [],
            attributes={names.RUN_ID: self._run_id, names.POLICY_VERSION: version},
        ) as span:
            manifest = await asyncio.to_thread(
                build_manifest,
                weights.tensors,
                run_id=self._run_id,
                epoch=self._queue.epoch,
                version=version,
                tied=weights.tied,
                traceparent=span_traceparent(span),
            )
            span.set_attribute(names.POLICY_DIGEST, manifest.digest)
            span.set_attribute(names.NUM_BYTES, manifest.total_bytes)
            await self._queue.register_version(version, digest=manifest.digest, branch=self._branch)
            self._shelf.publish(manifest, weights.tensors)
            self.digest = manifest.digest

    async def remind(self) -> None:
        """Register the newest version again, in case the queue's store lost it."""
        if self.digest:
            await self._queue.register_version(self.version, digest=self.digest, branch=self._branch)
