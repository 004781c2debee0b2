"""Makes steps final: the checkpoint first, then the commit that goes with it.

Owns that order, and what happens when the queue's store turns out to have lost or regained state: the newest checkpoint
becomes the queue's truth, and what it may have lost is fed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from services.common.errors import ReconcileRequiredError
from services.common.types import Partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.types import Ledger
    from services.trainer.account import Account
    from services.trainer.backend.port import TrainerBackend
    from services.trainer.backend_thread import BackendThread
    from services.trainer.checkpoint import CheckpointState, CheckpointStore
    from services.trainer.feeding import Feeder
    from services.trainer.publishing import Publisher
    from services.trainer.queue_link import QueueLink
    from services.trainer.versions import VersionFile

MAX_RECONCILES = 3
"""Times in a row that the queue's store may be found out of step before the run gives up."""

_log = structlog.get_logger("headrace.trainer")


class Committer:
    """Writes checkpoints and commits them. The newest version must be published before each call.

    Example: `await committer.save()` and then `await committer.commit()`.
    """

    def __init__(
        self,
        queue: QueueLink,
        backend: TrainerBackend,
        *,
        thread: BackendThread,
        checkpoints: CheckpointStore,
        publisher: Publisher,
        versions: VersionFile,
        feeder: Feeder,
        account: Account,
        newest: CheckpointState | None,
        seconds: Callable[[], float],
    ) -> None:
        """Prepare.

        Args:
            queue: where commits go.
            backend: what a checkpoint holds.
            thread: where the backend runs.
            checkpoints: where checkpoints lie.
            publisher: knows the newest version.
            versions: knows whether a newer trainer owns the run directory.
            feeder: knows the cursor, and is told what to offer again.
            account: knows what was trained on.
            newest: state of the newest checkpoint.
            seconds: wall time trained so far.
        """
        self._queue = queue
        self._backend = backend
        self._thread = thread
        self._checkpoints = checkpoints
        self._publisher = publisher
        self._versions = versions
        self._feeder = feeder
        self._account = account
        self._newest = newest
        self._seconds = seconds

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        return self._newest.step if self._newest else 0

    async def save(self) -> None:
        """Write a checkpoint of the present weights."""
        ledger = await self._queue.ledger(Partition.TRAIN)
        self._account.note_ended(ledger.first_open_sequence, ledger.ended_sequences)
        num_dropped = sum(ledger.tasks.dropped.values()) + ledger.tasks.dead_lettered
        state = self._account.state(
            next_sequence=self._feeder.next_sequence,
            # A store that regained older state knows of fewer.
            num_dropped=max(num_dropped, self._newest.num_dropped if self._newest else 0),
            policy_version=self._publisher.version,
            epoch=self._queue.epoch,
            seconds=self._seconds(),
        )
        await self._thread.run(self._write, state)
        self._account.settle(state)
        self._newest = state

    def _write(self, state: CheckpointState) -> None:
        """Copy the backend's state and write it; runs in the backend's thread."""
        self._checkpoints.save(self._backend.state(), state, check=self._versions.check)

    async def commit(self) -> None:
        """Make what the newest checkpoint contains final."""
        state = self._newest
        assert state is not None, "a commit follows its checkpoint"
        try:
            await self._queue.commit(
                state.results,
                partition=Partition.TRAIN,
                commit_number=state.commit_number,
                policy_version=state.policy_version,
            )
        except ReconcileRequiredError as error:
            await self.reconcile(error.message)
        self._feeder.wake()

    async def close_run(self) -> tuple[Ledger, ...]:
        """End the run with a last, empty commit: what is still open is dropped, and rollouters are told to stop.

        Returns:
            The account of every partition at the end.
        """
        for _ in range(MAX_RECONCILES):
            try:
                await self._commit_end()
                ledgers = await self._queue.ledgers()
                # A store that loses or regains state in between does not know of the end.
                if (await self._queue.stats()).run_finished:
                    return ledgers
            except ReconcileRequiredError as error:
                await self.reconcile(error.message)
        raise ReconcileRequiredError(f"the queue is out of step after {MAX_RECONCILES} reconciliations in a row")

    async def _commit_end(self) -> None:
        await self._queue.commit(
            (),
            partition=Partition.TRAIN,
            commit_number=self._account.commit_number + 1,
            policy_version=self._publisher.version,
            final=True,
        )

    async def reconcile(self, reason: str) -> None:
        """Bring the queue in line with all that was trained, and offer again what it may have lost.

        Args:
            reason: what showed that it is out of step.
        """
        _log.warning("the queue is out of step and is reconciled", reason=reason)
        if self._newest is None or self._account.has_pending:
            await self.save()
        assert self._newest is not None, "it was just saved"
        await self._queue.reconcile(self._newest, policy_version=self._publisher.version)
        await self._queue.release(Partition.TRAIN)
        await self._publisher.remind()
        self._feeder.rewind()
