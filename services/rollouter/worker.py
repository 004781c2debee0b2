"""Leases members, keeps the engine full of them, and sees every one of them to its end.

    consumes      members of LeaseTasks, as many as the engine has free slots
    waits for     an adopted version, a free slot, the queue's long poll
    unblocked by  an adoption, a finished generation, a put that was answered, a drain

A held member goes through

    generating --> finishing --> (put answered) forgotten
        |   `--> cancelled: its lease is lost, or it can no longer be in time, or the replica drains
        `------> failed: put as a failure with a named reason

Guarantees: a lease is renewed as long as its member is held, scoring and waiting for the queue included; the same
lease is never worked on twice here; when the queue is away, what is leased goes on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError, RunFinishedError
from services.common.types import Partition, ReleaseReason
from services.rollouter.model_calls import ModelCalls
from services.rollouter.outbox import Finished, Outbox
from services.rollouter.wait_log import WaitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.common.types import Assignment, LeasedTasks, LeaseId, ReplicaId
    from services.rollouter.attempts import AttemptRunner
    from services.rollouter.config import WorkerSettings
    from services.rollouter.engine.port import Engine
    from services.rollouter.policy_sync import PolicySync
    from services.rollouter.ports import TaskQueue

# A replica that is too old asks again after this time even when it has not caught up: older tasks may have come back.
_CATCH_UP_SECONDS = 1.0

_log = structlog.get_logger("headrace.rollouter")


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """A member that is worked on."""

    assignment: Assignment
    """Its lease."""
    calls: ModelCalls
    """The engine as it sees it."""
    task: asyncio.Task[None] | None = None
    """The work; set right after it was begun."""
    generating: bool = True
    """Whether it still needs the engine."""


class Worker:
    """Works for one run on one replica.

    Example:
        worker = Worker(queue, engine, sync, runner=runner, settings=settings, pause=Backoff().pause)
        group.create_task(worker.run())
        ...
        await worker.drain()
    """

    def __init__(
        self,
        queue: TaskQueue,
        engine: Engine,
        sync: PolicySync,
        *,
        runner: AttemptRunner,
        settings: WorkerSettings,
        pause: Callable[[int], float],
    ) -> None:
        """Hold nothing.

        Args:
            queue: where members come from and go to.
            engine: generates.
            sync: knows the newest version.
            runner: makes trajectories.
            settings: bounds and times.
            pause: seconds to wait after so many failures in a row.
        """
        self._queue = queue
        self._engine = engine
        self._sync = sync
        self._runner = runner
        self._settings = settings
        self._pause = pause
        self._held: dict[LeaseId, _Held] = {}
        self._outbox = Outbox(
            queue,
            replica_id=runner.replica_id,
            max_records=settings.max_finishing,
            pause=pause,
            on_settled=self._forget,
        )
        self._waits = WaitLog(queue, after_seconds=settings.lease_seconds, clock=time.monotonic)
        self._draining = False
        self._leasing = False
        self._changed = asyncio.Event()
        self.finished = asyncio.Event()
        """Set when the queue says that the run has finished."""
        self.num_tokens = 0
        """Tokens sampled for finished generations since the start."""

    @property
    def replica_id(self) -> ReplicaId:
        """This replica."""
        return self._runner.replica_id

    @property
    def draining(self) -> bool:
        """Whether no more members are leased."""
        return self._draining

    @property
    def num_held(self) -> int:
        """Members in flight, those that are scored or put included."""
        return len(self._held)

    @property
    def num_generating(self) -> int:
        """Members that need the engine."""
        return sum(held.generating for held in self._held.values())

    @property
    def num_accepted(self) -> int:
        """Trajectories that the queue took from this replica since its start."""
        return self._outbox.num_accepted

    async def run(self) -> None:
        """Work until cancelled, or until the run has finished or the replica drains and nothing is held."""
        await self._sync.wait_version(0)
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(loop()) for loop in (self._outbox.run, self._renew, self._end_stale)]
            await self._lease(group)
            while self._held:
                await self._wait_changed()
            for task in beside:
                task.cancel()

    async def drain(self) -> None:
        """Lease nothing more, let members end within the time, and give the rest back. Ends within the drain time."""
        self._draining = True
        self._notify()
        if not self.finished.is_set():
            try:
                async with asyncio.timeout(self._settings.drain_seconds):
                    while self._held or self._leasing:
                        await self._wait_changed()
            except TimeoutError:
                _log.info("giving back what did not end in time", members=len(self._held))
        await self._give_back(list(self._held.values()), reason=ReleaseReason.DRAIN)

    async def _lease(self, group: asyncio.TaskGroup) -> None:
        """Keep the engine full until the end."""
        failures = 0
        while not self._draining and not self.finished.is_set():
            room = self._room()
            if room == 0:
                await self._wait_changed()
                continue
            self._leasing = True
            try:
                leased = await self._queue.lease_tasks(
                    self.replica_id,
                    max_members=room,
                    policy_version=self._engine.policy_version,
                    wait_seconds=self._settings.lease_wait_seconds,
                )
                failures = 0
                await self._take(leased, group)
                await self._waits.note(working=bool(self._held), policy_version=self._engine.policy_version)
            except RunFinishedError:
                self.finished.set()
            except HeadraceError as error:
                # The run may not exist yet, or the queue may be away; both end.
                failures += 1
                if failures == 1:
                    _log.warning("cannot lease, will go on trying", error=error.message)
                await self._wait_changed(self._pause(failures))
            finally:
                self._leasing = False
                self._notify()

    async def _take(self, leased: LeasedTasks, group: asyncio.TaskGroup) -> None:
        """Begin what was leased, or wait for the version that the next task needs."""
        if leased.run_finished:
            _log.info("the run has finished")
            self.finished.set()
        elif self._draining:
            lease_ids = [assignment.lease_id for assignment in leased.assignments]
            await self._release(lease_ids, reason=ReleaseReason.DRAIN)
        elif leased.assignments:
            for assignment in leased.assignments:
                self._begin(assignment, group)
        elif leased.wanted_version is not None and leased.wanted_version > self._engine.policy_version:
            await self._sync.wait_version(leased.wanted_version, timeout_seconds=_CATCH_UP_SECONDS)

    def _room(self) -> int:
        """Members that may be leased now: free slots, as long as not too many wait for scores or the queue."""
        num_generating = self.num_generating
        num_finishing = len(self._held) - num_generating
        if num_finishing >= self._settings.max_finishing or self._outbox.is_full:
            return 0
        return max(0, self._engine.max_slots - num_generating)

    def _begin(self, assignment: Assignment, group: asyncio.TaskGroup) -> None:
        """Start to work on a member."""
        if assignment.lease_id in self._held:
            return
        calls = ModelCalls(self._engine, assignment, replica_id=self.replica_id, adoption_time=self._sync.adoption_time)
        held = _Held(assignment=assignment, calls=calls)
        self._held[assignment.lease_id] = held
        held.task = group.create_task(self._work(held))

    async def _work(self, held: _Held) -> None:
        """See one member to its end; it stays held until the queue has answered for it."""

        def on_generated() -> None:
            held.generating = False
            self._notify()

        lease_id = held.assignment.lease_id
        handed_over = False
        try:
            result = await self._runner.run(held.assignment, held.calls, on_generated=on_generated)
            on_generated()
            self.num_tokens += held.calls.num_tokens
            await self._outbox.add(Finished(assignment=held.assignment, result=result, ready_time=time.time()))
            handed_over = True
        finally:
            if not handed_over:
                self._forget(lease_id)

    def _forget(self, lease_id: LeaseId) -> None:
        """Stop renewing a lease; its member has ended."""
        self._held.pop(lease_id, None)
        self._notify()

    async def _renew(self) -> None:
        """Move the deadlines of all held leases; end work on those that are lost."""
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 3)
            lease_ids = list(self._held)
            if not lease_ids:
                continue
            try:
                lost = await self._queue.extend_lease(self.replica_id, lease_ids)
            except HeadraceError as error:
                _log.warning("cannot renew leases, work goes on", leases=len(lease_ids), error=error.message)
                continue
            lost_members = [held for lease_id in lost if (held := self._held.get(lease_id)) is not None]
            if lost_members:
                _log.warning("leases are lost", leases=len(lost_members))
                await self._cancel(lost_members)

    async def _end_stale(self) -> None:
        """End members whose oldest token would be too old at any future use."""
        while True:
            await asyncio.sleep(self._settings.stale_check_seconds)
            bound = self._sync.newest_version - self._settings.max_staleness
            running = self._engine.oldest_versions()
            stale = [held for held in self._held.values() if _is_stale(held, running, bound)]
            if stale:
                _log.info("ended members that cannot be in time", members=len(stale), oldest_usable_version=bound)
                await self._give_back(stale, reason=ReleaseReason.STALE)

    async def _give_back(self, members: Sequence[_Held], *, reason: ReleaseReason) -> None:
        """End work on members and return their leases."""
        await self._cancel(members)
        await self._release([held.assignment.lease_id for held in members], reason=reason)

    async def _cancel(self, members: Sequence[_Held]) -> None:
        """End work on members, and wait until their slots are free."""
        tasks = [held.task for held in members if held.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for held in members:
            self._forget(held.assignment.lease_id)

    async def _release(self, lease_ids: Sequence[LeaseId], *, reason: ReleaseReason) -> None:
        """Return leases; when the queue is away they lapse, which costs time and nothing else."""
        if not lease_ids:
            return
        try:
            await self._queue.release_tasks(lease_ids, reason=reason)
        except HeadraceError as error:
            _log.warning("cannot return leases, they will lapse", leases=len(lease_ids), error=error.message)

    def _notify(self) -> None:
        """Wake whoever waits for a change of what is held."""
        self._changed.set()

    async def _wait_changed(self, timeout_seconds: float = 1.0) -> None:
        """Wait for the next change, at most so long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return


def _is_stale(held: _Held, running: dict[str, int], bound: int) -> bool:
    """Whether a generating training member has a token older than `bound`."""
    if not held.generating or held.assignment.key.partition is not Partition.TRAIN:
        return False
    oldest = held.calls.oldest_version(running)
    return oldest is not None and oldest < bound
