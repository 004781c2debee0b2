"""Leases the groups of one optimiser step, page by page, and knows when waiting has become pointless.

Consumes ready groups; waits for rollouters; is unblocked by finished groups, the end of data or a wish to stop.
Guarantees that a batch is in order of sequence, that no group is handed on that this trainer already used, and that a
run which got nothing for `stall_seconds` ends with a sentence that says what it waits for and what failed. A run in
which every attempt fails ends sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import ReconcileRequiredError, StalledError
from services.common.standing import describe_rollouters
from services.common.types import FailureReason, Partition

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from services.common.types import Group, LeasedBatch, Ledger, PartitionStats, RunStats
    from services.trainer.account import Account
    from services.trainer.queue_link import QueueLink

POLL_SECONDS = 2.0
"""Longest single wait; also how late a wish to stop is noticed."""
NUDGE_SECONDS = 10.0
"""Time without news after which feeder and version are told to the queue again."""
HOPELESS_BATCHES = 3
"""A run whose first so many batches of tasks were dead-lettered, without a single scored attempt, is given up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The groups of one step."""

    groups: list[Group]
    """In order of sequence; fewer than wanted only at the end of data or on a wish to stop."""
    end_of_data: bool
    """No further group will ever come."""
    lease_time: float
    """When the last of them was leased, seconds since the epoch, by this process's clock."""
    num_ready: int
    """Groups that were ready and left in the queue."""


class Patience:
    """Measures how long nothing has come."""

    def __init__(self, *, stall_seconds: float, clock: Callable[[], float]) -> None:
        """Start waiting now.

        Args:
            stall_seconds: longest time without news.
            clock: monotonic seconds.
        """
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._since = self._nudged = clock()
        self._most_ready = 0

    def news(self, *, got: bool, num_ready: int) -> None:
        """Note an answer: something came, or more became ready than ever before."""
        if got or num_ready > self._most_ready:
            self._since = self._nudged = self._clock()
            self._most_ready = 0 if got else num_ready

    @property
    def exhausted(self) -> bool:
        """Whether nothing came for too long."""
        return self._clock() - self._since >= self._stall_seconds

    def nudge_due(self) -> bool:
        """Whether it is time to remind others; true once per `NUDGE_SECONDS`."""
        if self._clock() - self._nudged < NUDGE_SECONDS:
            return False
        self._nudged = self._clock()
        return True


class BatchCollector:
    """Leases training batches.

    Example: `batch = await collector.collect(16, use_version=3)`.
    """

    def __init__(
        self,
        queue: QueueLink,
        account: Account,
        *,
        stall_seconds: float,
        stop: asyncio.Event,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """Prepare.

        Args:
            queue: where groups come from.
            account: what was used already.
            stall_seconds: longest time without news.
            stop: ends a wait early.
            clock: monotonic seconds.
            wall_clock: seconds since the epoch.
        """
        self._queue = queue
        self._account = account
        self._stall_seconds = stall_seconds
        self._stop = stop
        self._clock = clock
        self._wall_clock = wall_clock

    async def collect(self, num_groups: int, *, use_version: int, nudge: Callable[[], Awaitable[None]]) -> Batch:
        """Lease the groups of one step.

        Args:
            num_groups: groups wanted.
            use_version: version at which they will be used.
            nudge: called now and then while nothing comes.

        Raises:
            StalledError: nothing came for too long, or nothing can come since every attempt fails.
            ReconcileRequiredError: the queue does not know of a commit, or handed out what was used before.
        """
        groups: list[Group] = []
        patience = Patience(stall_seconds=self._stall_seconds, clock=self._clock)
        answer: LeasedBatch | None = None
        while len(groups) < num_groups and not self._stop.is_set():
            answer = await self._queue.lease_batch(
                Partition.TRAIN,
                num_groups=num_groups - len(groups),
                use_version=use_version,
                wait_seconds=min(POLL_SECONDS, self._stall_seconds),
            )
            self._check(answer, groups)
            groups.extend(answer.groups)
            if answer.end_of_data:
                break
            patience.news(got=bool(answer.groups), num_ready=answer.num_ready)
            if patience.exhausted:
                raise await stall_error(self._queue, self._stall_seconds, wanted=num_groups)
            if not groups and not answer.num_ready and self._account.step == 0:
                check_hope(await self._queue.ledger(Partition.TRAIN), wanted=num_groups)
            if not answer.groups and patience.nudge_due():
                await nudge()
        return Batch(
            groups=sorted(groups, key=lambda group: group.sequence),
            end_of_data=answer is not None and answer.end_of_data,
            lease_time=self._wall_clock(),
            num_ready=answer.num_ready if answer else 0,
        )

    def _check(self, answer: LeasedBatch, held: list[Group]) -> None:
        """Refuse an answer of a queue that lost what this trainer knows.

        Args:
            answer: what it said.
            held: groups of the same step that it handed out before.
        """
        if answer.commit_number != self._account.commit_number:
            raise ReconcileRequiredError(
                f"the queue's newest commit is {answer.commit_number} and the trainer's is "
                f"{self._account.commit_number}; the store lost or regained state"
            )
        leased = {group.sequence for group in held}
        for group in answer.groups:
            if group.sequence in leased:
                raise ReconcileRequiredError(f"the queue handed out task {group.task_id} twice for one step")
            if group.sequence in self._account.frontier:
                raise ReconcileRequiredError(
                    f"the queue handed out task {group.task_id} (attempt {group.attempt}), which was trained on before"
                )


async def stall_error(
    queue: QueueLink, seconds: float, *, wanted: int, partition: Partition = Partition.TRAIN
) -> StalledError:
    """The error of a run that got nothing for too long, with what it waits for and what failed."""
    waits_for = describe_stall(await queue.stats(), seconds, wanted=wanted, partition=partition)
    failures = describe_failures(await queue.ledger(partition))
    prefix = "" if partition is Partition.TRAIN else f"{partition}: "
    return StalledError(f"{prefix}{waits_for}; {failures}" if failures else f"{prefix}{waits_for}")


def check_hope(ledger: Ledger, *, wanted: int) -> None:
    """End a run in which no attempt was ever scored and several batches of tasks were dead-lettered.

    Raises:
        StalledError: it is so.
    """
    tasks, attempts = ledger.tasks, ledger.trajectories
    bound = HOPELESS_BATCHES * wanted
    # A reward service that cannot be reached may only be late, so that gets all of `stall_seconds`.
    may_heal = bool(attempts.failed.get(FailureReason.REWARD_UNAVAILABLE))
    if tasks.dead_lettered >= bound and not (tasks.consumed or attempts.put or may_heal):
        raise StalledError(
            f"no attempt was ever scored: {describe_failures(ledger)} (given up at {bound} dead-lettered tasks, "
            f"{HOPELESS_BATCHES} times trainer.groups_per_step)"
        )


def describe_failures(ledger: Ledger) -> str:
    """Word what failed by reason and where to look; empty when nothing did."""
    failed = {str(reason): count for reason, count in ledger.trajectories.failed.items() if count}
    if not failed and not ledger.tasks.dead_lettered:
        return ""
    parts = [f"{count:,} attempts failed with {reason}" for reason, count in sorted(failed.items())]
    parts.append(f"{ledger.tasks.dead_lettered:,} tasks were dead-lettered")
    is_reward = any(reason.startswith("reward_") for reason in failed)
    logs = "logs/reward.log and logs/rollouter-*.log" if is_reward else "logs/rollouter-*.log"
    return f"{', '.join(parts)}; look into {logs}"


def describe_stall(stats: RunStats, seconds: float, *, wanted: int, partition: Partition = Partition.TRAIN) -> str:
    """Word what a run without groups waits for."""
    depths = next((entry for entry in stats.partitions if entry.partition is partition), None)
    where = (
        f"{depths.ready_groups} of {wanted} groups ready, {depths.pending_members} members wait for a rollouter, "
        f"{depths.in_flight_members} are in flight{_describe_hold(depths)}"
        if depths
        else "nothing is queued"
    )
    data = "; the data has ended and no task follows" if depths and depths.data_ended else ""
    return (
        f"no group became ready for {seconds:g} s: {where}{data}; version wanted is {stats.policy_version}; "
        f"rollouters: {describe_rollouters(stats)} (the bound is trainer.stall_seconds)"
    )


def _describe_hold(depths: PartitionStats) -> str:
    """Word what `async.on_stale = "wait"` holds the batch for; empty when it holds none."""
    if not depths.held_for_groups:
        return ""
    return (
        f", the batch is held for {depths.held_for_groups} unfinished groups that the next versions would make too old "
        '(async.on_stale = "wait")'
    )
