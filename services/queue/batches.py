"""Batches: whole groups for the trainer, final only with its commit.

Guarantees: no group older than the bound is handed out; what is leased stays leased until a commit or a release; a
commit number is applied once.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from services.common.errors import InvalidInputError, ReconcileRequiredError, UnavailableError
from services.common.types import GroupOutcome, LeaseId, Partition, TaskId
from services.queue.answers import expect_ok, status_of, text, texts
from services.queue.keys import check_id, payload_key, run_key
from services.queue.records import StoredBatch, StoredGroup
from services.queue.tasks import check_wait
from services.queue.waiting import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import GroupResult, RunId
    from services.queue.connection import RedisConnection
    from services.queue.kept import Kept
    from services.queue.runs import Runs
    from services.queue.waiting import Waiting

_MS = 1000
_DEFAULT_MAX_BYTES = 32 * 1024 * 1024
_FIELDS = 5


class Batches:
    """Batches of all runs on one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting, *, runs: Runs, payloads: Kept) -> None:
        """Use the connection; wait for and tell of news; end what is left of a finished run; take kept payloads."""
        self._redis = redis
        self._waiting = waiting
        self._runs = runs
        self._payloads = payloads

    async def lease(
        self,
        run_id: RunId,
        *,
        epoch: int,
        partition: Partition,
        num_groups: int,
        use_version: int,
        request_id: str,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
    ) -> StoredBatch:
        """Lease groups in order of sequence once `num_groups` are ready or the data has ended; waits for that.

        The same `request_id` again returns what it leased before.

        Raises:
            OverloadedError: none came, and none can before a commit: the run is at the bound of its quota of bytes.
        """
        if num_groups < 1:
            raise InvalidInputError(f"num_groups is {num_groups}; use at least 1")
        check_id(request_id, "request_id")
        check_wait(wait_seconds)
        words = (epoch, partition, num_groups, use_version, max_bytes or _DEFAULT_MAX_BYTES, request_id)

        async def once() -> list[Any]:
            return expect_ok(await self._redis.run("lease_batch", run_key(run_id), *words), run_id)

        found = await self._waiting.until(
            run_id,
            Topic.GROUPS,
            once,
            enough=lambda answer: bool(answer[0] or answer[4:]),
            missing=lambda answer: int(answer[3]),
            wait_seconds=wait_seconds,
        )
        end_of_data, commit_number, num_ready, _, *rows = found
        if not rows and not end_of_data:
            await self._runs.check_room(run_id)
        # Room for new groups: those that were handed out, and tasks issued again in place of stale ones.
        self._waiting.notify(run_id, Topic.TASKS)
        return StoredBatch(
            groups=await self._with_payloads(run_id, partition, [texts(row) for row in rows]),
            end_of_data=bool(end_of_data),
            commit_number=int(commit_number),
            num_ready=int(num_ready),
        )

    async def _with_payloads(
        self, run_id: RunId, partition: Partition, rows: list[list[str]]
    ) -> tuple[StoredGroup, ...]:
        keys = [
            [
                payload_key(run_id, LeaseId(f"{partition}/{row[0]}/{row[1]}/{member}/{issue}"))
                for member, issue in zip(row[_FIELDS::3], row[_FIELDS + 1 :: 3], strict=True)
            ]
            for row in rows
        ]
        payloads = await self._payloads.take(list(chain.from_iterable(keys)))
        return tuple(_group(row, [payloads.get(key) for key in of_row]) for row, of_row in zip(rows, keys, strict=True))

    async def release(self, run_id: RunId, *, epoch: int, partition: Partition) -> int:
        """Make the leased groups ready again, whichever epoch leased them; returns how many."""
        answer = await self._redis.run("release_batch", run_key(run_id), epoch, partition)
        released = int(expect_ok(answer, run_id)[0])
        self._waiting.notify(run_id, Topic.GROUPS)
        return released

    async def commit(
        self,
        run_id: RunId,
        results: Sequence[GroupResult],
        *,
        epoch: int,
        partition: Partition,
        commit_number: int,
        policy_version: int,
        final: bool = False,
    ) -> int:
        """Make consumption final; returns the number of the newest applied commit.

        Raises:
            ReconcileRequiredError: the number is not the next one and not an earlier one.
        """
        columns = [
            [result.task_id, result.attempt, _column(result), -1 if result.sequence is None else result.sequence]
            for result in results
        ]
        answer = await self._redis.run(
            "commit_batch",
            run_key(run_id),
            epoch,
            partition,
            commit_number,
            policy_version,
            int(final),
            json.dumps(columns),
        )
        status = status_of(answer, run_id)
        if status == "reconcile":
            raise ReconcileRequiredError(
                f"commit {commit_number} does not follow {text(answer[1])}, the newest that the queue knows of "
                f"run {run_id!r}; Reconcile must come first",
                commit_number=text(answer[1]),
            )
        if final:
            while (await self._runs.sweep(run_id))[0]:
                pass
        self._waiting.notify(run_id)
        return int(answer[1])


def _group(row: list[str], payloads: list[bytes | None]) -> StoredGroup:
    found = tuple(payload for payload in payloads if payload is not None)
    if len(found) < len(payloads):
        raise UnavailableError(f"group {row[0]} ended while it was read; repeat the call")
    return StoredGroup(
        task_id=TaskId(row[0]),
        attempt=int(row[1]),
        sequence=int(row[2]),
        group_size=int(row[3]),
        oldest_version=int(row[4]),
        payloads=found,
        put_times=tuple(int(put_ms) / _MS for put_ms in row[_FIELDS + 2 :: 3]),
    )


def _column(result: GroupResult) -> str:
    """Return the ledger's column of a result.

    Raises:
        InvalidInputError: outcome and drop reason do not fit.
    """
    check_id(result.task_id, "task_id")
    if (result.outcome is GroupOutcome.DROPPED) != (result.drop_reason is not None):
        raise InvalidInputError(
            f"result of task {result.task_id} has outcome {result.outcome} and drop_reason {result.drop_reason}; "
            "a drop_reason belongs to exactly the outcome dropped"
        )
    return f"dropped:{result.drop_reason}" if result.drop_reason else result.outcome.value
