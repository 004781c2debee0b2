"""Where a run stands at one moment, asked from its queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.common.standing import newest_trainer
from services.common.types import Partition
from services.launcher.letters import SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.common.clients.queue import QueueClient
    from services.common.types import DeadLetter, Ledger, ReplicaReport, RunStats

WAIT_SHARE = "wait_share"
"""Metric of a heartbeat: share of the last while that the replica had nothing to do."""
TOKENS_PER_SECOND = "tokens_per_second"
"""Metric of a heartbeat: tokens sampled, or trained on, per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of a run."""

    stats: RunStats
    """Depths, versions and replicas."""
    ledgers: tuple[Ledger, ...]
    """The account of each partition."""
    dead_letters: tuple[DeadLetter, ...] = ()
    """The newest tasks that were given up, newest first."""

    @property
    def num_dead_letters(self) -> int:
        """Tasks that were given up."""
        return sum(ledger.tasks.dead_lettered for ledger in self.ledgers)

    @property
    def trainer(self) -> ReplicaReport | None:
        """What the trainer said last; None before its first heartbeat."""
        return newest_trainer(self.stats)

    @property
    def rollouters(self) -> list[ReplicaReport]:
        """What the rollouters said last, in order of name."""
        found = [report for report in self.stats.replicas if report.status.service == "rollouter"]
        return sorted(found, key=lambda report: report.status.replica_id)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all rollouters sample per second."""
        return sum(report.status.metrics.get(TOKENS_PER_SECOND, 0.0) for report in self.rollouters)

    @property
    def trainer_wait_share(self) -> float | None:
        """Share of its time that the trainer waits; None when it did not say."""
        return self.trainer.status.metrics.get(WAIT_SHARE) if self.trainer else None

    @property
    def rollouter_wait_share(self) -> float | None:
        """Share of its time that the average rollouter waits; None when none said."""
        return _mean(report.status.metrics.get(WAIT_SHARE) for report in self.rollouters)

    @property
    def ready_groups(self) -> int:
        """Training groups that wait for the trainer."""
        return sum(part.ready_groups for part in self.stats.partitions if part.partition is Partition.TRAIN)

    @property
    def held_for_groups(self) -> int:
        """Unfinished groups that the trainer's batch is held for."""
        return sum(part.held_for_groups for part in self.stats.partitions if part.partition is Partition.TRAIN)

    def trainer_metric(self, name: str) -> float | None:
        """A figure of the newest step."""
        return self.trainer.status.metrics.get(name) if self.trainer else None


async def take_snapshot(client: QueueClient) -> Snapshot:
    """Ask the queue.

    Raises:
        HeadraceError: it does not answer, or does not know the run (yet).
    """
    snapshot = Snapshot(stats=await client.get_stats(), ledgers=await client.get_ledger())
    if not snapshot.num_dead_letters:
        return snapshot
    return replace(snapshot, dead_letters=await client.get_dead_letters(max_letters=SHOWN))


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
