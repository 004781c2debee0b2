"""Runs: their rules, the trainer's epoch, the version register, heartbeats, and what to do when Redis lost state.

Guarantees: one epoch at a time; versions only grow; after `reconcile` both tables of the ledger balance.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from services.common.errors import ConflictError, InvalidInputError
from services.common.types import RunId, RunState
from services.queue.answers import expect_ok, status_of, text, texts
from services.queue.keys import RUNS_KEY, check_id, run_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import ReplicaStatus, RunSettings
    from services.queue.connection import RedisConnection
    from services.queue.waiting import Waiting

_MS = 1000
_MAX_OWNER_CHARACTERS = 256


class Runs:
    """The runs on one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting) -> None:
        """Use the connection; tell waiters what changed."""
        self._redis = redis
        self._waiting = waiting

    async def create(self, run_id: RunId, settings: RunSettings, *, owner_id: str) -> RunState:
        """Create the run or take it over.

        Raises:
            ConflictError: the run exists with other settings.
            InvalidInputError: a setting is out of bounds.
        """
        key = run_key(run_id)
        if not 0 < len(owner_id) <= _MAX_OWNER_CHARACTERS:
            raise InvalidInputError(f"owner_id has {len(owner_id)} characters; use 1 to {_MAX_OWNER_CHARACTERS}")
        fields = _fields(settings)
        words = [word for pair in fields.items() for word in pair]
        answer = await self._redis.run("create_run", key, owner_id, *words)
        if status_of(answer, run_id) == "conflict":
            name, known, given = texts(answer[1:])
            name, known, given = _readable(name, known, given)
            raise ConflictError(
                f"run {run_id!r} exists with other settings ({name} {known} != {given}); "
                "keep its settings or choose another run name",
                key=name,
            )
        epoch, commit_number, policy_version, replica_version, created, finished = (int(value) for value in answer[1:])
        await self._redis.add_member(RUNS_KEY, run_id)
        self._waiting.notify(run_id)
        return RunState(
            epoch=epoch,
            commit_number=commit_number,
            policy_version=policy_version,
            replica_version=replica_version,
            created=bool(created),
            finished=bool(finished),
        )

    async def register_version(
        self, run_id: RunId, *, epoch: int, version: int, digest: str, branch: bool = False
    ) -> None:
        """Register a newly assigned policy version.

        Raises:
            InvalidInputError: the number does not grow.
            ConflictError: it was registered with another digest.
        """
        if version < 0:
            raise InvalidInputError(f"version is {version}; versions begin at 0")
        answer = await self._redis.run("register_version", run_key(run_id), epoch, version, digest, int(branch))
        status = status_of(answer, run_id)
        if status == "not_newer":
            raise InvalidInputError(
                f"version is {version}, the newest registered is {text(answer[1])}; versions only grow"
            )
        if status == "conflict":
            raise ConflictError(f"version {version} was registered with digest {text(answer[1])}, now {digest}")
        self._waiting.notify(run_id)

    async def heartbeat(self, run_id: RunId, status: ReplicaStatus) -> bool:
        """Keep what a replica says of itself; returns whether the run has finished."""
        check_id(status.replica_id, "replica_id")
        answer = await self._redis.run(
            "heartbeat", run_key(run_id), status.replica_id, status.policy_version, json.dumps(asdict(status))
        )
        return bool(expect_ok(answer, run_id)[0])

    async def reconcile(
        self,
        run_id: RunId,
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
        """Make the trainer's checkpoint the truth; returns how many tasks were removed."""
        early = [sequence for sequence in ended_sequences if sequence < first_open_sequence]
        if early:
            raise InvalidInputError(
                f"ended_sequences has {early[0]}, first_open_sequence is {first_open_sequence}; leave out what is below"
            )
        answer = await self._redis.run(
            "reconcile",
            run_key(run_id),
            epoch,
            commit_number,
            first_open_sequence,
            policy_version,
            num_consumed,
            num_filtered,
            num_dropped,
            *ended_sequences,
        )
        removed = int(expect_ok(answer, run_id)[0])
        await self._redis.add_member(RUNS_KEY, run_id)
        self._waiting.notify(run_id)
        return removed

    async def sweep(self, run_id: RunId) -> tuple[int, bool]:
        """Lapse what is overdue, drop what a finished run still holds.

        Returns:
            How many leases and groups ended, and whether there can be more later.
        """
        answer = await self._redis.run("sweep", run_key(run_id))
        ended, live, finished = (int(value) for value in expect_ok(answer, run_id))
        if ended:
            self._waiting.notify(run_id)
        return ended, live > 0 or not finished

    async def swept_runs(self) -> list[RunId]:
        """List the runs that may have something to sweep."""
        return [RunId(member) for member in await self._redis.members(RUNS_KEY)]

    async def forget(self, run_id: RunId) -> None:
        """Leave the run out of later sweeps."""
        await self._redis.remove_member(RUNS_KEY, run_id)


def _fields(settings: RunSettings) -> dict[str, str | int]:
    """Return the settings as the run's hash holds them.

    Raises:
        InvalidInputError: one is out of bounds.
    """
    least = {
        "max_staleness": 0,
        "groups_per_version": 1,
        "max_member_issues": 1,
        "max_queue_size": 1,
        "max_queue_bytes": 1,
        "min_group_members": 1,
    }
    for name, bound in least.items():
        value = getattr(settings, name)
        if value < bound:
            raise InvalidInputError(f"{name} is {value}; use at least {bound}")
    lease_ms = round(settings.lease_seconds * _MS)
    if lease_ms < 1:
        raise InvalidInputError(f"lease_seconds is {settings.lease_seconds}; use at least 0.001")
    return {
        "max_staleness": settings.max_staleness,
        "groups_per_version": settings.groups_per_version,
        "on_stale": settings.on_stale.value,
        "max_member_issues": settings.max_member_issues,
        "lease_ms": lease_ms,
        "max_queue_size": settings.max_queue_size,
        "max_queue_bytes": settings.max_queue_bytes,
        "when_full": settings.when_full.value,
        "min_group_members": settings.min_group_members,
    }


def _readable(name: str, known: str, given: str) -> tuple[str, str, str]:
    """Return a field of the hash as the setting it came from."""
    if name != "lease_ms":
        return name, known, given
    return "lease_seconds", f"{int(known) / _MS:g}", f"{int(given) / _MS:g}"
