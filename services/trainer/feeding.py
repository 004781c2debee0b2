"""Feeds tasks ahead of training, as far as the capacity rule admits and never more than the run still needs.

Owns the dataset cursor. Consumes dataset rows; waits for capacity (`EnqueueTasks` accepts fewer than offered); is
unblocked by a new version, a commit, a leased batch or a dropped group, and looks again after `POLL_SECONDS` whatever
happened. How much the run needs is counted from the queue's own ledger: `wanted groups - consumed - open`, so that a
group that was dropped or given up is replaced by the next task.

While the queue's store is out of step with what was trained, nothing is fed: `rewind` says when that is over.

Tasks that the store lost are offered again before any later one, so that they stay in order.

After a resume everything that the checkpoint had fed and not ended is offered again: what the queue still has counts as
accepted and changes nothing, what it lost comes back.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from services.common.errors import ReconcileRequiredError, RunFinishedError
from services.common.types import Partition

if TYPE_CHECKING:
    from services.common.types import Ledger
    from services.trainer.account import Account
    from services.trainer.queue_link import QueueLink
    from services.trainer.tasks import TaskSource

POLL_SECONDS = 1.0
"""Longest time between two looks."""
CHUNK_TASKS = 256
"""Most tasks in one call."""


class Feeder:
    """Keeps the queue topped up with training tasks.

    Example: `await Feeder(queue, source, account=account, total_groups=3200, next_sequence=0).run()`, beside the loop.
    """

    def __init__(
        self, queue: QueueLink, source: TaskSource, *, account: Account, total_groups: int, next_sequence: int
    ) -> None:
        """Start at a cursor.

        Args:
            queue: where tasks go.
            source: the tasks.
            account: what has ended already.
            total_groups: groups that the run consumes in all.
            next_sequence: cursor of the checkpoint; everything below it was fed once.
        """
        self._queue = queue
        self._source = source
        self._account = account
        self._total_groups = total_groups
        self._known_until = next_sequence
        self._cursor = account.frontier.first_open
        self._said_end = False
        self._num_rewinds = 0
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()

    @property
    def next_sequence(self) -> int:
        """The next sequence number that was never fed."""
        return max(self._cursor, self._known_until)

    def wake(self) -> None:
        """Look for capacity now."""
        self._wake.set()

    def rewind(self) -> None:
        """Offer again what was fed and has not ended, in case the queue lost it."""
        self._known_until = self.next_sequence
        self._cursor = self._account.frontier.first_open
        self._num_rewinds += 1
        self._said_end = False
        self.wake()

    def stop(self) -> None:
        """Feed nothing more."""
        self._stopping.set()
        self.wake()

    async def run(self) -> None:
        """Feed until stopped.

        Raises:
            RunFinishedError: the run was closed while more was to be fed.
        """
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                await self.feed()
            except ReconcileRequiredError:
                # The loop finds out too, between two steps, and rewinds once the queue knows where the run stands.
                pass
            except RunFinishedError:
                # The last call may have been on its way when the loop stopped the feeder and closed the run.
                if not self._stopping.is_set():
                    raise
                return
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def feed(self) -> None:
        """Feed as much as is wanted and admitted now."""
        may_rewind = True
        while not self._stopping.is_set():
            sequences = self._known_again()
            if not sequences:
                ledger = await self._queue.ledger(Partition.TRAIN)
                if may_rewind and self._has_lost(ledger):
                    # Once per look: what was trained on and is not committed stays missing until it is.
                    may_rewind = False
                    self.rewind()
                    continue
                sequences = self._next(self._still_needed(ledger))
            ends = self._source.limit is not None and self._after(sequences) >= self._source.limit
            if not sequences and (self._said_end or not ends):
                return
            tasks = [self._source.task(sequence) for sequence in sequences]
            num_rewinds = self._num_rewinds
            accepted = await self._queue.enqueue(tasks, partition=Partition.TRAIN, end_of_data=ends)
            if num_rewinds != self._num_rewinds:
                # The queue lost state while this call was on its way; what comes before it goes first.
                continue
            if accepted < len(sequences):
                self._cursor = sequences[accepted]
                return
            self._cursor = self._after(sequences)
            self._said_end = ends

    def _known_again(self) -> list[int]:
        """Sequence numbers that were fed once and have not ended: offered again, whatever the run still needs."""
        while self._cursor < self._known_until and self._cursor in self._account.frontier:
            self._cursor += 1
        open_ones = (at for at in range(self._cursor, self._known_until) if at not in self._account.frontier)
        return list(islice(open_ones, CHUNK_TASKS))

    def _has_lost(self, ledger: Ledger) -> bool:
        """Whether tasks that were fed are neither open in the queue nor ended there."""
        num_known = ledger.first_open_sequence + len(ledger.ended_sequences) + ledger.tasks.open
        return num_known < self.next_sequence

    def _still_needed(self, ledger: Ledger) -> int:
        """Groups that the run needs beyond what is open or consumed."""
        return max(0, self._total_groups - ledger.tasks.consumed - ledger.tasks.open)

    def _next(self, needed: int) -> list[int]:
        """The next sequence numbers that were never fed."""
        end = self._cursor + min(needed, CHUNK_TASKS)
        if self._source.limit is not None:
            end = min(end, self._source.limit)
        return list(range(self._cursor, end))

    def _after(self, sequences: list[int]) -> int:
        """Where the cursor stands once `sequences` are in the queue."""
        return sequences[-1] + 1 if sequences else self._cursor
