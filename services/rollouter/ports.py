"""What the rollouter's core needs from the queue and the reward service. Clients and fakes satisfy it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import (
        FailedMember,
        LeasedTasks,
        LeaseId,
        PutOutcome,
        ReleaseReason,
        ReplicaId,
        ReplicaStatus,
        RunStats,
        Score,
        ScoreRequest,
        Trajectory,
    )


class TaskQueue(Protocol):
    """The queue, as a rollouter uses it; one run, one replica."""

    async def lease_tasks(
        self, replica_id: ReplicaId, *, max_members: int, policy_version: int, wait_seconds: float
    ) -> LeasedTasks:
        """Lease members that `policy_version` may sample; waits for the first."""
        ...

    async def extend_lease(self, replica_id: ReplicaId, lease_ids: Sequence[LeaseId]) -> tuple[LeaseId, ...]:
        """Renew leases; returns those that are lost."""
        ...

    async def release_tasks(self, lease_ids: Sequence[LeaseId], *, reason: ReleaseReason) -> None:
        """Give leased members back unfinished."""
        ...

    async def put_trajectories(self, results: Sequence[Trajectory | FailedMember]) -> tuple[PutOutcome, ...]:
        """Put finished or failed members; a repeated put is one put."""
        ...

    async def heartbeat(self, status: ReplicaStatus) -> bool:
        """Report a state; returns whether the run has finished."""
        ...

    async def get_stats(self) -> RunStats:
        """Depths, versions and replicas."""
        ...


class Scorer(Protocol):
    """The reward service, as a rollouter uses it."""

    async def score(self, request: ScoreRequest, *, timeout_seconds: float, traceparent: str = "") -> Score:
        """Score one completion, retrying while the service is away.

        Raises:
            HeadraceError: there is no score.
        """
        ...
