"""Tasks: feeding them as far as the staleness bound admits, and the leases of their members.

Guarantees: a member is never in two live leases that both count; a leased member comes back when its holder dies or
gives it back; members are handed out in order of (sequence, member).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from services.common.errors import ConflictError, InvalidInputError, RunFinishedError, UnavailableError
from services.common.types import Enqueued, MemberKey, Partition, ReleaseReason, TaskId
from services.queue.answers import expect_ok, status_of, text, texts
from services.queue.kept import Kept
from services.queue.keys import body_key, check_id, run_key
from services.queue.records import StoredAssignment, StoredAssignments, parse_lease_id
from services.queue.waiting import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import LeaseId, RunId
    from services.queue.connection import RedisConnection
    from services.queue.records import StoredTask
    from services.queue.waiting import Waiting

MAX_WAIT_SECONDS = 30.0
"""Longest long poll."""

_MS = 1000
_TOKEN_BYTES = 8
_WRITE_TRIES = 3
_MAX_MEMBERS = 4096
_MAX_TASKS = 4096
_MAX_KEPT_BYTES = 4 * 1024 * 1024


class Tasks:
    """Tasks of all runs on one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting) -> None:
        """Use the connection; wait for and tell of news."""
        self._redis = redis
        self._waiting = waiting
        self._bodies = Kept(redis, max_bytes=_MAX_KEPT_BYTES)

    async def enqueue(
        self,
        run_id: RunId,
        tasks: Sequence[StoredTask],
        *,
        epoch: int,
        partition: Partition,
        end_of_data: bool = False,
        pinned_version: int | None = None,
        num_filtered: int = 0,
    ) -> Enqueued:
        """Add tasks in order as far as the capacity rule admits.

        Raises:
            ConflictError: an id or a sequence number is taken by another task; nothing was added.
            RunFinishedError: the run has ended.
        """
        _check_tasks(tasks, partition)
        bodies = {body_key(run_id, partition, task.task_id, task.content): task.body for task in tasks}
        words: list[str | int] = []
        for task in tasks:
            words += [task.task_id, task.sequence, task.group_size, task.content]
        pinned = "" if pinned_version is None else pinned_version
        for _ in range(_WRITE_TRIES):
            answer, _ = await self._redis.write_and_run(
                "enqueue_tasks",
                run_key(run_id),
                epoch,
                partition,
                int(end_of_data),
                pinned,
                num_filtered,
                *words,
                values=bodies,
            )
            status = status_of(answer, run_id)
            if status == "finished":
                raise RunFinishedError(f"run {run_id!r} has finished; nothing can be added")
            if status == "conflict":
                given, other = texts(answer[1:3])
                raise ConflictError(
                    f"task {given!r} differs from {other!r}, which the queue holds under the same id or sequence number"
                )
            if status == "ok":
                # Also an end of the data is news to those who wait.
                self._waiting.notify(run_id)
                return Enqueued(num_accepted=int(answer[1]), remaining_capacity=int(answer[2]))
        raise UnavailableError("task bodies kept expiring before they were taken; is Redis overloaded?")

    async def lease(
        self, run_id: RunId, *, max_members: int, policy_version: int, wait_seconds: float = 0.0
    ) -> StoredAssignments:
        """Lease members that `policy_version` may sample; waits for the first."""
        if not 1 <= max_members <= _MAX_MEMBERS:
            raise InvalidInputError(f"max_members is {max_members}; use 1 to {_MAX_MEMBERS}")
        check_wait(wait_seconds)
        return await self._waiting.until(
            run_id,
            Topic.TASKS,
            lambda: self._lease_once(run_id, max_members, policy_version),
            # A replica that is too old learns it at once, so that it asks again as soon as it has caught up.
            enough=lambda found: bool(found.assignments) or found.run_finished or found.wanted_version is not None,
            wait_seconds=wait_seconds,
        )

    async def _lease_once(self, run_id: RunId, max_members: int, policy_version: int) -> StoredAssignments:
        # Random, so that no lease is named as one before, whatever state the server lost or regained meanwhile.
        token = secrets.token_hex(_TOKEN_BYTES)
        answer = await self._redis.run("lease_tasks", run_key(run_id), max_members, policy_version, token)
        finished, wanted, lease_ms, *rows = expect_ok(answer, run_id)
        return StoredAssignments(
            assignments=await self._with_bodies(run_id, [text(row).split() for row in rows], token),
            lease_seconds=int(lease_ms) / _MS,
            run_finished=bool(finished),
            wanted_version=int(wanted) if text(wanted) else None,
        )

    async def _with_bodies(self, run_id: RunId, rows: list[list[str]], token: str) -> tuple[StoredAssignment, ...]:
        keys = [body_key(run_id, Partition(row[0]), TaskId(row[1]), row[8]) for row in rows]
        bodies = await self._bodies.read(keys)
        # A body is gone when its task has just ended; the lease then ends by itself.
        return tuple(_assignment(row, bodies[key], token) for row, key in zip(rows, keys, strict=True) if key in bodies)

    async def extend(self, run_id: RunId, lease_ids: Sequence[LeaseId]) -> tuple[LeaseId, ...]:
        """Renew leases; returns those that are lost."""
        if not lease_ids:
            return ()
        answer = await self._redis.run("extend_leases", run_key(run_id), *_words(lease_ids))
        lost = expect_ok(answer, run_id)
        return tuple(lease_id for lease_id, is_lost in zip(lease_ids, lost, strict=True) if is_lost)

    async def release(self, run_id: RunId, lease_ids: Sequence[LeaseId], reason: ReleaseReason) -> int:
        """Take leased members back unfinished; returns how many were leased."""
        if not lease_ids:
            return 0
        answer = await self._redis.run("release_tasks", run_key(run_id), reason.value, *_words(lease_ids))
        released = int(expect_ok(answer, run_id)[0])
        if released:
            self._waiting.notify(run_id, Topic.TASKS)
        return released


def check_wait(wait_seconds: float) -> None:
    """Refuse a wait that is out of bounds.

    Raises:
        InvalidInputError: it is negative or too long.
    """
    if not 0 <= wait_seconds <= MAX_WAIT_SECONDS:
        raise InvalidInputError(f"wait_seconds is {wait_seconds}; use 0 to {MAX_WAIT_SECONDS:g}")


def _check_tasks(tasks: Sequence[StoredTask], partition: Partition) -> None:
    if len(tasks) > _MAX_TASKS:
        raise InvalidInputError(f"{len(tasks)} tasks in one call; send at most {_MAX_TASKS}")
    last = -1
    ids: set[TaskId] = set()
    for task in tasks:
        check_id(task.task_id, "task_id")
        if task.partition is not partition:
            raise InvalidInputError(
                f"task {task.task_id} is of partition {task.partition} in a call for {partition}; send them apart"
            )
        if task.group_size < 1:
            raise InvalidInputError(f"group_size of task {task.task_id} is {task.group_size}; use at least 1")
        if task.sequence <= last:
            raise InvalidInputError(
                f"sequence of task {task.task_id} is {task.sequence} after {last}; send tasks in growing order from 0"
            )
        if task.task_id in ids:
            raise InvalidInputError(f"task {task.task_id} comes twice in one call; ids are unique")
        last = task.sequence
        ids.add(task.task_id)


def _assignment(row: list[str], body: bytes, token: str) -> StoredAssignment:
    partition, task_id, attempt, member, issue, min_version, enqueue_ms, issue_ms, _ = row
    key = MemberKey(partition=Partition(partition), task_id=TaskId(task_id), attempt=int(attempt), member=int(member))
    return StoredAssignment(
        key=key,
        issue=int(issue),
        token=token,
        min_version=int(min_version),
        body=body,
        enqueue_time=int(enqueue_ms) / _MS,
        issue_time=int(issue_ms) / _MS,
    )


def _words(lease_ids: Sequence[LeaseId]) -> list[Any]:
    words: list[Any] = []
    for lease_id in lease_ids:
        key, issue = parse_lease_id(lease_id)
        words += [key.partition, key.task_id, key.attempt, key.member, issue]
    return words
