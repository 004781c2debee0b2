"""Puts: a finished or failed member enters its group, exactly once whatever is retried.

The payload is written first, under the lease's name and with a time to live; the script then takes it or removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.errors import InvalidInputError, OverloadedError, UnavailableError
from services.common.types import LeaseId, PutOutcome
from services.queue.answers import expect_ok, texts
from services.queue.keys import check_id, payload_key, run_key
from services.queue.records import parse_lease_id
from services.queue.waiting import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import RunId
    from services.queue.connection import RedisConnection
    from services.queue.kept import Kept
    from services.queue.records import PutRecord
    from services.queue.waiting import Waiting

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
"""Largest serialized trajectory."""

_MISSING = "missing"
_FULL = "full"
_WRITE_TRIES = 3


class Trajectories:
    """Trajectories of all runs on one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting, payloads: Kept) -> None:
        """Use the connection; tell waiters what changed; keep payloads for the trainer, who will soon ask for them."""
        self._redis = redis
        self._waiting = waiting
        self._payloads = payloads

    async def put(self, run_id: RunId, records: Sequence[PutRecord]) -> tuple[PutOutcome, ...]:
        """Put each record on its own; returns what became of each.

        Raises:
            OverloadedError: the run's quota has no room for one of them; the others were put, and all may be repeated.
        """
        outcomes: dict[int, PutOutcome] = {}
        left = list(enumerate([(record, _issue(record)) for record in records]))
        for _ in range(_WRITE_TRIES):
            if not left:
                break
            answers = await self._put_once(run_id, [named for _, named in left])
            if _FULL in answers:
                raise OverloadedError(
                    f"run {run_id!r} holds twice its quota of bytes; there is room once its trainer commits or drops "
                    "groups, or when queue.quota_bytes of the queue service is raised"
                )
            taken = zip(left, answers, strict=True)
            outcomes |= {index: PutOutcome(answer) for (index, _), answer in taken if answer != _MISSING}
            left = [(index, named) for index, named in left if index not in outcomes]
        if left:
            raise UnavailableError("payloads kept expiring before they were taken; is Redis overloaded?")
        return tuple(outcomes[index] for index in range(len(records)))

    async def _put_once(self, run_id: RunId, records: Sequence[tuple[PutRecord, str]]) -> list[str]:
        payloads: dict[str, bytes] = {}
        names: list[str] = []
        words: list[str | int] = []
        for record, issue in records:
            key = record.key
            reason = record.failure.value if record.failure else ""
            names.append(payload_key(run_id, LeaseId(f"{key}/{issue}")))
            if not record.failure:
                payloads[names[-1]] = record.payload
            words += [key.partition, key.task_id, key.attempt, key.member, issue]
            words += [reason, record.oldest_version, len(record.payload)]
        answer, written = await self._redis.write_and_run("put_trajectories", run_key(run_id), *words, values=payloads)
        num_closed, *rows = expect_ok(answer, run_id)
        outcomes = texts(rows)
        accepted = {name for name, outcome in zip(names, outcomes, strict=True) if outcome == PutOutcome.ACCEPTED}
        for name in accepted.intersection(written):
            self._payloads.keep(name, payloads[name])
        if num_closed:
            self._waiting.notify(run_id, Topic.GROUPS, amount=int(num_closed))
        if PutOutcome.REISSUED in outcomes:
            self._waiting.notify(run_id, Topic.TASKS)
        return outcomes


def _issue(record: PutRecord) -> str:
    """Return the issue that the record answers, with its token.

    Raises:
        InvalidInputError: the record contradicts itself or is too large.
    """
    key, issue = parse_lease_id(record.lease_id)
    check_id(key.task_id, "task_id")
    if key != record.key:
        raise InvalidInputError(f"lease {record.lease_id} is not one of trajectory {record.key}")
    if record.failure is None and not record.payload:
        raise InvalidInputError(f"trajectory {record.key} has neither a payload nor a failure; send one of them")
    if len(record.payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInputError(
            f"trajectory {record.key} has {len(record.payload)} bytes; at most {MAX_PAYLOAD_BYTES} are stored"
        )
    return issue
