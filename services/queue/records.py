"""What the queue handles: tasks and trajectories as bytes that it does not look into, and the facts that it needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import InvalidInputError
from services.common.types import LeaseId, MemberKey, Partition, TaskId

if TYPE_CHECKING:
    from services.common.types import FailureReason

_LEASE_ID_PARTS = 6
_MAX_TOKEN_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """A task to be fed."""

    task_id: TaskId
    """Unique in the run and partition."""
    partition: Partition
    """The stream it says it belongs to."""
    sequence: int
    """Position in the order, >= 0."""
    group_size: int
    """Members wanted, >= 1."""
    body: bytes
    """The serialized task."""

    @property
    def content(self) -> str:
        """Hash of the body; tells a repeated feeding from a conflict."""
        return hashlib.blake2b(self.body, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignment:
    """A leased member."""

    key: MemberKey
    """Which trajectory is wanted."""
    issue: int
    """How often this member was issued before in this attempt."""
    token: str
    """Tells this lease from one with the same number, given before the server lost or regained state."""
    min_version: int
    """Oldest policy version that may sample it."""
    body: bytes
    """The serialized task."""
    enqueue_time: float
    """When the task was fed, seconds since the epoch, by the server's clock."""
    issue_time: float
    """When the lease was given, seconds since the epoch, by the server's clock."""

    @property
    def lease_id(self) -> LeaseId:
        """Name of the lease."""
        return format_lease_id(self.key, self.issue, self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignments:
    """What a rollouter got."""

    assignments: tuple[StoredAssignment, ...]
    """The leased members."""
    lease_seconds: float
    """Time until they lapse."""
    run_finished: bool
    """Whether the run has finished."""
    wanted_version: int | None
    """Oldest version that a waiting task may be sampled with, when the replica is too old for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRecord:
    """A finished or failed member."""

    key: MemberKey
    """Which trajectory."""
    lease_id: LeaseId
    """The lease it was produced under."""
    payload: bytes = b""
    """The serialized trajectory; empty for a failure."""
    failure: FailureReason | None = None
    """Why there is none."""
    oldest_version: int = 0
    """Smallest policy version among the sampled tokens; ignored for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A leased group."""

    task_id: TaskId
    """The task."""
    attempt: int
    """Its attempt."""
    sequence: int
    """Its sequence number."""
    group_size: int
    """Members wanted."""
    oldest_version: int
    """Smallest version among the sampled tokens of all members."""
    payloads: tuple[bytes, ...]
    """The serialized trajectory of each scored member, in order of member."""
    put_times: tuple[float, ...]
    """When each was put, seconds since the epoch, by the server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """What the trainer got."""

    groups: tuple[StoredGroup, ...]
    """Whole groups in order of sequence."""
    end_of_data: bool
    """No further group will ever be ready after these."""
    commit_number: int
    """Number of the newest applied commit."""
    num_ready: int
    """Groups that are ready and were not handed out."""


def format_lease_id(key: MemberKey, issue: int, token: str) -> LeaseId:
    """Name the lease of an issue: the trajectory id, the issue and its token."""
    return LeaseId(f"{key}/{issue}/{token}")


def parse_lease_id(lease_id: LeaseId) -> tuple[MemberKey, str]:
    """Take a lease id apart: the trajectory, and the issue with its token as scripts name it.

    Raises:
        InvalidInputError: it is none of ours.
    """
    parts = lease_id.split("/")
    known = {partition.value for partition in Partition}
    if (
        not lease_id.isascii()
        or len(parts) != _LEASE_ID_PARTS
        or parts[0] not in known
        or not all(part.isdecimal() for part in parts[2:5])
        or not (parts[5].isalnum() and len(parts[5]) <= _MAX_TOKEN_CHARACTERS)
    ):
        raise InvalidInputError(f"lease_id is {lease_id[:200]!r}; use the one of the assignment")
    attempt, member = int(parts[2]), int(parts[3])
    key = MemberKey(partition=Partition(parts[0]), task_id=TaskId(parts[1]), attempt=attempt, member=member)
    return key, f"{parts[4]}/{parts[5]}"
