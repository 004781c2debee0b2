"""The replica as others see it: its state, its gauges, its heartbeats."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError
from services.common.types import ReplicaStatus
from services.rollouter.gauges import Gauges

if TYPE_CHECKING:
    from services.rollouter.engine.port import Engine
    from services.rollouter.policy_sync import PolicySync
    from services.rollouter.ports import TaskQueue
    from services.rollouter.worker import Worker

_WORK_LOOK_SECONDS = 0.05

_log = structlog.get_logger("headrace.rollouter")


class Replica:
    """Says what this replica is doing.

    Example:
        replica = Replica(queue, engine, worker=worker, sync=sync, heartbeat_seconds=2.0)
        group.create_task(replica.run())
    """

    def __init__(
        self, queue: TaskQueue, engine: Engine, *, worker: Worker, sync: PolicySync, heartbeat_seconds: float
    ) -> None:
        """Look at the parts.

        Args:
            queue: where heartbeats go.
            engine: generates.
            worker: leases and works.
            sync: adopts.
            heartbeat_seconds: time between two heartbeats.
        """
        self._queue = queue
        self._engine = engine
        self._worker = worker
        self._sync = sync
        self._heartbeat_seconds = heartbeat_seconds
        self._gauges: dict[str, float] = {}
        self.address = ""
        """Where this replica's own service listens, once it does."""

    def status(self) -> ReplicaStatus:
        """Return what is true now; rates are those of the last heartbeat."""
        adoption = self._sync.last_adoption
        metrics = dict(self._gauges)
        if adoption is not None:
            metrics["adoption_pause_seconds"] = adoption.pause_seconds
            metrics["adoption_total_seconds"] = adoption.total_seconds
            metrics["adoption_bytes"] = float(adoption.received_bytes)
        return ReplicaStatus(
            replica_id=self._worker.replica_id,
            service="rollouter",
            policy_version=self._engine.policy_version,
            policy_digest=self._engine.policy_digest,
            busy_slots=self._worker.num_generating,
            max_slots=self._engine.max_slots,
            address=self.address,
            state=self._state(),
            metrics=metrics,
        )

    def _state(self) -> str:
        """One word for what the replica is doing."""
        if self._worker.draining:
            return "draining"
        return "serving" if self._sync.last_adoption is not None else "starting"

    async def run(self) -> None:
        """Report until cancelled; a report that is lost is followed by the next."""
        clock = asyncio.get_running_loop().time
        gauges = Gauges(now=clock())
        failed = False
        while True:
            self._gauges = gauges.sample(now=clock(), num_tokens=self._worker.num_tokens)
            try:
                if await self._queue.heartbeat(self.status()):
                    self._worker.finished.set()
                failed = False
            except HeadraceError as error:
                if not failed:
                    _log.warning("cannot send heartbeats, will go on trying", error=error.message)
                failed = True
            due = clock() + self._heartbeat_seconds
            while clock() < due:
                # Before its first version a replica is not able to work, so it does not wait for work either.
                able = self._sync.last_adoption is not None and not self._worker.draining
                gauges.note_work(self._worker.num_generating > 0 or not able, now=clock())
                await asyncio.sleep(_WORK_LOOK_SECONDS)
