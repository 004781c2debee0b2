"""The trainer's line to the queue: its epoch on every call, and patience while the queue or its store restarts.

Owns which calls are repeated and for how long. Every call here is safe to repeat: `LeaseBatch` by its request id,
the others by the ids in them. A newer trainer shows as `FencedError`, which is never repeated.

Owns also what happens when the store has lost the whole run: whichever call finds out creates it again, under a larger
epoch, unless the run directory belongs to a newer trainer. From then on the link is out of step: calls that move groups
(feeding, leasing, committing) end with `ReconcileRequiredError` until `reconcile` told the store where the run stands.

    in step --a call finds no run--> out of step --reconcile()--> in step
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from services.common.errors import FencedError, HeadraceError, InternalError, NotFoundError, ReconcileRequiredError
from services.common.rpc.retry import retrying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from services.common.types import (
        DeadLetter,
        Enqueued,
        GroupResult,
        LeasedBatch,
        Ledger,
        Partition,
        ReplicaStatus,
        RunSettings,
        RunState,
        RunStats,
        Task,
    )
    from services.trainer.checkpoint import CheckpointState

T = TypeVar("T")

_log = structlog.get_logger("headrace.trainer")


class EpochFile(Protocol):
    """Where the run directory names the trainer that owns it; `services.trainer.versions.VersionFile` is it."""

    @property
    def epoch(self) -> int:
        """Epoch of the trainer that wrote last; 0 before the first."""
        ...

    def check(self) -> None:
        """Make sure that no newer trainer owns the run directory; raises `FencedError`."""
        ...

    def claim(self, epoch: int) -> None:
        """Take the run directory over; raises `FencedError`."""
        ...


class QueuePort(Protocol):
    """The queue's calls that a trainer makes; `services.common.clients.queue` and the in-memory fake have them."""

    async def create_run(self, settings: RunSettings, *, owner_id: str) -> RunState:
        """Create the run or take it over."""
        ...

    async def enqueue_tasks(
        self,
        tasks: Sequence[Task],
        *,
        epoch: int,
        partition: Partition,
        end_of_data: bool = False,
        pinned_version: int | None = None,
    ) -> Enqueued:
        """Add tasks as far as capacity admits."""
        ...

    async def lease_batch(
        self,
        *,
        epoch: int,
        partition: Partition,
        num_groups: int,
        use_version: int,
        wait_seconds: float,
        request_id: str,
    ) -> LeasedBatch:
        """Lease whole groups in order of sequence."""
        ...

    async def commit_batch(
        self,
        results: Sequence[GroupResult],
        *,
        epoch: int,
        partition: Partition,
        commit_number: int,
        policy_version: int,
        final: bool = False,
    ) -> int:
        """Make consumption final; returns the number of the newest applied commit."""
        ...

    async def release_batch(self, *, epoch: int, partition: Partition) -> int:
        """Return leased groups to the queue; returns how many."""
        ...

    async def register_version(self, version: int, *, epoch: int, digest: str, branch: bool) -> None:
        """Register a newly assigned policy version."""
        ...

    async def reconcile(
        self,
        *,
        epoch: int,
        commit_number: int,
        first_open_sequence: int,
        ended_sequences: Sequence[int],
        policy_version: int,
        num_consumed: int,
        num_filtered: int,
        num_dropped: int,
    ) -> int:
        """Bring the queue in line with a checkpoint; returns how many tasks it removed."""
        ...

    async def heartbeat(self, status: ReplicaStatus) -> bool:
        """Report a state; returns whether the run has finished."""
        ...

    async def get_ledger(self) -> tuple[Ledger, ...]:
        """The account of every partition."""
        ...

    async def get_dead_letters(self, *, max_letters: int) -> tuple[DeadLetter, ...]:
        """The newest tasks that were given up, newest first."""
        ...

    async def get_stats(self) -> RunStats:
        """Depths, versions and replicas."""
        ...


class QueueLink:
    """Calls the queue for one trainer.

    Example:
        link = QueueLink(client, patience_seconds=300.0)
        state = await link.take_over(settings)
        batch = await link.lease_batch(Partition.TRAIN, num_groups=16, use_version=3, wait_seconds=2.0)
    """

    def __init__(self, port: QueuePort, *, patience_seconds: float) -> None:
        """Use a client.

        Args:
            port: the client.
            patience_seconds: how long a call is repeated while the queue cannot be reached.
        """
        self._port = port
        self._patience_seconds = patience_seconds
        self._creating = asyncio.Lock()
        self._recreate: Callable[[], Awaitable[RunState]] | None = None
        self.epoch = 0
        """Epoch of this trainer; 0 before `take_over`."""
        self.is_out_of_step = False
        """Whether the store lost the run and was not reconciled yet."""

    async def take_over(self, settings: RunSettings, *, epochs: EpochFile) -> RunState:
        """Create the run or take it over, and the run directory with it; every later call carries the new epoch.

        Args:
            settings: the run's rules.
            epochs: names the trainer that owns the run directory.

        Raises:
            FencedError: a newer trainer took the run over meanwhile.
        """

        async def create() -> RunState:
            # Read before: whoever claims the directory after this call began may be the newer one.
            former = max(self.epoch, epochs.epoch)
            owner_id = uuid.uuid4().hex
            state = await self._retried("CreateRun", lambda: self._port.create_run(settings, owner_id=owner_id))
            # A store that lost the run, or its newest takeovers, counts from less than it gave out before.
            epoch = max(state.epoch, former + 1)
            await asyncio.to_thread(epochs.claim, epoch)
            self.epoch = epoch
            return state

        async def create_again() -> RunState:
            await asyncio.to_thread(epochs.check)
            return await create()

        self._recreate = create_again
        return await create()

    async def enqueue(
        self,
        tasks: Sequence[Task],
        *,
        partition: Partition,
        end_of_data: bool = False,
        pinned_version: int | None = None,
    ) -> int:
        """Offer tasks; returns how many, counted from the first, the queue took or had."""
        enqueued = await self._in_step(
            "EnqueueTasks",
            lambda: self._port.enqueue_tasks(
                tasks,
                epoch=self.epoch,
                partition=partition,
                end_of_data=end_of_data,
                pinned_version=pinned_version,
            ),
        )
        return enqueued.num_accepted

    async def lease_batch(
        self, partition: Partition, *, num_groups: int, use_version: int, wait_seconds: float
    ) -> LeasedBatch:
        """Lease whole groups; a lost answer is asked for again under the same request id, so no group is stranded."""
        request_id = uuid.uuid4().hex
        return await self._in_step(
            "LeaseBatch",
            lambda: self._port.lease_batch(
                epoch=self.epoch,
                partition=partition,
                num_groups=num_groups,
                use_version=use_version,
                wait_seconds=wait_seconds,
                request_id=request_id,
            ),
        )

    async def commit(
        self,
        results: Sequence[GroupResult],
        *,
        partition: Partition,
        commit_number: int = 0,
        policy_version: int = 0,
        final: bool = False,
    ) -> int:
        """Make consumption final; returns the number of the newest applied commit."""
        return await self._in_step(
            "CommitBatch",
            lambda: self._port.commit_batch(
                results,
                epoch=self.epoch,
                partition=partition,
                commit_number=commit_number,
                policy_version=policy_version,
                final=final,
            ),
        )

    async def commit_once(self, results: Sequence[GroupResult], *, partition: Partition) -> None:
        """Make a measurement's groups final. Such commits have no number, so a lost answer must not be repeated.

        What the lost call did not apply goes back to the queue, and comes again as groups that nobody asked for.
        """
        epoch = self.epoch
        try:
            await self._port.commit_batch(results, epoch=epoch, partition=partition, commit_number=0, policy_version=0)
        except (NotFoundError, FencedError) as error:
            raise await self._lost(error, epoch) from error
        except HeadraceError as error:
            if not error.retryable:
                raise
            _log.warning("a measurement's commit got no answer", reason=error.message)
            await self.release(partition)

    async def release(self, partition: Partition) -> int:
        """Return leased groups that are not committed; returns how many."""
        return await self._patiently(
            "ReleaseBatch", lambda: self._port.release_batch(epoch=self.epoch, partition=partition)
        )

    async def register_version(self, version: int, *, digest: str, branch: bool) -> None:
        """Register a newly assigned policy version."""
        await self._patiently(
            "RegisterVersion",
            lambda: self._port.register_version(version, epoch=self.epoch, digest=digest, branch=branch),
        )

    async def reconcile(self, state: CheckpointState, *, policy_version: int) -> int:
        """Bring the queue in line with a checkpoint; returns how many tasks it removed."""
        num_removed = await self._patiently(
            "Reconcile",
            lambda: self._port.reconcile(
                epoch=self.epoch,
                commit_number=state.commit_number,
                first_open_sequence=state.first_open_sequence,
                ended_sequences=state.ended_sequences,
                policy_version=policy_version,
                num_consumed=state.num_consumed,
                num_filtered=state.num_filtered,
                num_dropped=state.num_dropped,
            ),
        )
        self.is_out_of_step = False
        return num_removed

    async def heartbeat(self, status: ReplicaStatus) -> bool:
        """Report a state once; not repeated, since the next one is two seconds away."""
        return await self._port.heartbeat(status)

    async def ledgers(self) -> tuple[Ledger, ...]:
        """The account of every partition."""
        return await self._patiently("GetLedger", self._port.get_ledger)

    async def dead_letters(self, *, max_letters: int) -> tuple[DeadLetter, ...]:
        """The newest tasks that were given up, newest first."""
        return await self._patiently("GetDeadLetters", lambda: self._port.get_dead_letters(max_letters=max_letters))

    async def ledger(self, partition: Partition) -> Ledger:
        """The account of one partition."""
        for ledger in await self.ledgers():
            if ledger.partition is partition:
                return ledger
        raise InternalError(f"the queue keeps no ledger of partition {partition}")

    async def stats(self) -> RunStats:
        """Depths, versions and replicas."""
        return await self._patiently("GetStats", self._port.get_stats)

    async def _patiently(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the queue cannot be reached, and once more on a run that the store had lost."""
        epoch = self.epoch
        try:
            return await self._retried(what, call)
        except (NotFoundError, FencedError) as error:
            await self._lost(error, epoch)
        return await self._retried(what, call)

    async def _in_step(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The same for a call that may only reach a store that knows where the run stands."""
        epoch = self.epoch

        async def once() -> T:
            if self.is_out_of_step or self.epoch != epoch:
                raise ReconcileRequiredError(f"{what}: the queue's store lost the run and must be reconciled first")
            return await call()

        try:
            return await self._retried(what, once)
        except (NotFoundError, FencedError) as error:
            raise await self._lost(error, epoch) from error

    async def _lost(self, error: NotFoundError | FencedError, epoch: int) -> ReconcileRequiredError:
        """Create the run again, once for all the calls that found it missing.

        A call that was on its way meanwhile is refused for its epoch, which is then this trainer's own former one.

        Args:
            error: what says that it is missing, or that the epoch is an older one.
            epoch: the caller's epoch when the call began.

        Returns:
            What a call raises that must not go on before the store is reconciled.

        Raises:
            FencedError: a newer trainer owns the run.
        """
        async with self._creating:
            if self.epoch == epoch:
                if self._recreate is None or isinstance(error, FencedError):
                    raise error
                await self._recreate()
                self.is_out_of_step = True
                _log.warning("the queue's store lost the run, which was created again", epoch=self.epoch)
        return ReconcileRequiredError(f"the queue's store lost the run ({error.message})")

    async def _retried(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        return await retrying(call, deadline_seconds=self._patience_seconds, what=what)
