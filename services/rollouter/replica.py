"""The replica as others see it: its state, its gauges, its heartbeats, its last word.

    starting -> serving -> draining -> left

One that says `left` has given everything back; one that falls silent in any other state has died or hangs. When nobody
answers the heartbeats for long, or the run has ended meanwhile, the replica has no reason to be and says so.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError, UnavailableError
from services.common.types import ReplicaStatus
from services.rollouter.gauges import Gauges

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.rollouter.engine.port import Engine
    from services.rollouter.policy_sync import PolicySync
    from services.rollouter.ports import TaskQueue
    from services.rollouter.worker import Worker

_WORK_LOOK_SECONDS = 0.05
_LAST_WORD_SECONDS = 1.0

_log = structlog.get_logger("headrace.rollouter")


class Replica:
    """Says what this replica is doing.

    Example:
        replica = Replica(queue, engine, worker=worker, sync=sync, heartbeat_seconds=2.0, patience_seconds=300.0)
        group.create_task(replica.run())
    """

    def __init__(
        self,
        queue: TaskQueue,
        engine: Engine,
        *,
        worker: Worker,
        sync: PolicySync,
        heartbeat_seconds: float,
        patience_seconds: float,
        run_ended: Callable[[], str] = str,
    ) -> None:
        """Look at the parts.

        Args:
            queue: where heartbeats go.
            engine: generates.
            worker: leases and works.
            sync: adopts.
            heartbeat_seconds: time between two heartbeats.
            patience_seconds: time without an answer after which the replica ends.
            run_ended: asked when there is no answer: a sentence when the run has ended, else empty.
        """
        self._queue = queue
        self._engine = engine
        self._worker = worker
        self._sync = sync
        self._heartbeat_seconds = heartbeat_seconds
        self._patience_seconds = patience_seconds
        self._run_ended = run_ended
        self._gauges: dict[str, float] = {}
        self._has_left = False
        self.address = ""
        """Where this replica's own service listens, once it does."""
        self.problem: HeadraceError | None = None
        """Why the replica ended by itself although the run may go on; None when it did not."""

    def status(self) -> ReplicaStatus:
        """Return what is true now; rates are those of the last heartbeat."""
        adoption = self._sync.last_adoption
        metrics = self._gauges | {"num_trajectories": float(self._worker.num_accepted)}
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
        if self._has_left:
            return "left"
        if self._worker.draining:
            return "draining"
        return "serving" if self._sync.last_adoption is not None else "starting"

    async def run(self) -> None:
        """Report until cancelled, or until it is in vain; a report that is lost is followed by the next."""
        clock = asyncio.get_running_loop().time
        gauges = Gauges(now=clock())
        failing_since: float | None = None
        while True:
            self._gauges = gauges.sample(now=clock(), num_tokens=self._worker.num_tokens)
            try:
                if await self._queue.heartbeat(self.status()):
                    self._worker.finished.set()
                failing_since = None
            except HeadraceError as error:
                # Counted from the first failure and not from the last answer: a replica that was frozen for long has
                # not asked for long, and deserves its whole patience now.
                if failing_since is None:
                    failing_since = clock()
                    _log.warning("cannot send heartbeats, will go on trying", error=error.message)
                if self._is_in_vain(clock() - failing_since, error):
                    self._worker.finished.set()
                    return
            due = clock() + self._heartbeat_seconds
            while clock() < due:
                # Before its first version a replica is not able to work, so it does not wait for work either.
                able = self._sync.last_adoption is not None and not self._worker.draining
                gauges.note_work(self._worker.num_generating > 0 or not able, now=clock())
                await asyncio.sleep(_WORK_LOOK_SECONDS)

    def _is_in_vain(self, failing_seconds: float, error: HeadraceError) -> bool:
        """Whether the run has ended, or nobody answered for too long."""
        sentence = self._run_ended()
        if sentence:
            _log.warning(sentence)
            return True
        if failing_seconds < self._patience_seconds:
            return False
        self.problem = UnavailableError(
            f"the queue gave no answer for {failing_seconds:.0f} s (the bound is rollout.patience_seconds): "
            f"{error.message}; the run has ended, or its queue must be started again before a rollouter joins"
        )
        return True

    async def leave(self) -> None:
        """Say that this replica has given everything back. A word that is lost costs nothing: it is then missed."""
        self._has_left = True
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                await self._queue.heartbeat(self.status())
