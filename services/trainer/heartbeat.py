"""Tells the queue every two seconds what the trainer is doing, so that a watcher needs only the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError
from services.common.types import ReplicaStatus

if TYPE_CHECKING:
    from services.common.types import ReplicaId
    from services.trainer.queue_link import QueueLink
    from services.trainer.status import TrainerStatus

_log = structlog.get_logger("headrace.trainer")


class Heartbeat:
    """Reports a trainer's status.

    Example: `Heartbeat(queue, status, replica_id=replica_id, interval_seconds=2.0).run()` as a background task.
    """

    def __init__(
        self, queue: QueueLink, status: TrainerStatus, *, replica_id: ReplicaId, interval_seconds: float
    ) -> None:
        """Prepare.

        Args:
            queue: who is told.
            status: what is told.
            replica_id: name of this process.
            interval_seconds: time between two reports.
        """
        self._queue = queue
        self._status = status
        self._replica_id = replica_id
        self._interval_seconds = interval_seconds
        self.address = ""
        """Where the trainer listens; known once it is bound."""

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(self._interval_seconds)

    async def beat(self) -> None:
        """Report once; a queue that is away is told the next time, and the loop finds out by itself."""
        if not self._status.epoch:
            # Before the takeover the queue may not know the run.
            return
        status = self._status
        try:
            await self._queue.heartbeat(
                ReplicaStatus(
                    replica_id=self._replica_id,
                    service="trainer",
                    policy_version=status.policy_version,
                    policy_digest=status.policy_digest,
                    busy_slots=0,
                    max_slots=0,
                    address=self.address,
                    state=status.state.value,
                    metrics={
                        **status.metrics,
                        "step": float(status.step),
                        "total_steps": float(status.total_steps),
                    },
                )
            )
        except HeadraceError as error:
            _log.warning("heartbeat not delivered", reason=error.message)
