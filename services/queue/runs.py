"""Runs: their rules, the trainer's epoch, the version register, heartbeats, and what to do when Redis lost state.

Guarantees: one epoch at a time; versions only grow; after `reconcile` both tables of the ledger balance; a run of
another state format is refused and never misread.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from services.common.errors import ConflictError, InvalidInputError, OverloadedError, QuotaError, UnavailableError
from services.common.types import RunId, RunState
from services.queue.answers import expect_ok, status_of, text, texts
from services.queue.keys import LIVE_KEY, RUNS_KEY, check_id, run_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.types import ReplicaStatus, RunSettings
    from services.queue.connection import RedisConnection
    from services.queue.quotas import Quotas
    from services.queue.waiting import Waiting

_MS = 1000
_MAX_OWNER_CHARACTERS = 256
_HELD_BYTES = 6


class Runs:
    """The runs on one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting, quotas: Quotas) -> None:
        """Use the connection; tell waiters what changed; grant no run more than its quotas."""
        self._redis = redis
        self._waiting = waiting
        self._quotas = quotas

    async def create(self, run_id: RunId, settings: RunSettings, *, owner_id: str) -> RunState:
        """Create the run or take it over.

        Raises:
            ConflictError: the run exists with other settings.
            InvalidInputError: a setting is out of bounds.
            QuotaError: it is a new run, and the queue grants none with these settings.
            StateFormatError: another version of Headrace wrote the run.
            UnavailableError: a run of this name is being deleted.
        """
        key = run_key(run_id)
        if not 0 < len(owner_id) <= _MAX_OWNER_CHARACTERS:
            raise InvalidInputError(f"owner_id has {len(owner_id)} characters; use 1 to {_MAX_OWNER_CHARACTERS}")
        fields = _fields(settings)
        words = [word for pair in fields.items() for word in pair]
        refusal = self._quotas.refusal(settings, num_runs=await self._redis.count_members(RUNS_KEY))
        answer = await self._redis.run("create_run", key, owner_id, int(not refusal), *self._run_quotas, *words)
        status = status_of(answer, run_id)
        if status == "refused":
            raise QuotaError(f"run {run_id!r} cannot begin: {refusal}")
        if status == "deleting":
            # Known as a run, so that somebody goes on with what was begun.
            await self._redis.add_member(RUNS_KEY, run_id)
            raise UnavailableError(f"run {run_id!r} is being deleted; try again in some seconds, or use another name")
        if status == "conflict":
            name, known, given = texts(answer[1:])
            name, known, given = _readable(name, known, given)
            raise ConflictError(
                f"run {run_id!r} exists with other settings ({name} {known} != {given}); "
                "keep its settings or choose another run name",
                key=name,
            )
        epoch, commit_number, policy_version, replica_version, created, finished = (int(value) for value in answer[1:])
        await self._enter(run_id)
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
        await self._enter(run_id)
        self._waiting.notify(run_id)
        return removed

    async def check_room(self, run_id: RunId) -> None:
        """Refuse to wait for groups that cannot come, since no payload is taken any more.

        Raises:
            OverloadedError: the run is at the bound of its quota of bytes.
        """
        if not self._quotas.bytes_per_run:
            return
        answer = await self._redis.run("describe_run", run_key(run_id))
        if status_of(answer, run_id) == "ok" and answer[-1]:
            raise OverloadedError(
                f"run {run_id!r} holds {text(answer[_HELD_BYTES])} bytes of trajectories and takes no more, at twice "
                f"its quota of {self._quotas.bytes_per_run}; commit what is leased (lower trainer.checkpoint_every) or "
                "raise queue.quota_bytes of the queue service"
            )

    async def sweep(self, run_id: RunId) -> tuple[int, bool]:
        """Lapse what is overdue, drop what a finished run still holds.

        Returns:
            How many leases and groups ended, and whether there can be more later.
        """
        answer = await self._redis.run("sweep", run_key(run_id), *self._run_quotas)
        ended, live, finished = (int(value) for value in expect_ok(answer, run_id))
        if ended:
            self._waiting.notify(run_id)
        return ended, live > 0 or not finished

    async def swept_runs(self) -> list[RunId]:
        """List the runs that may have something to sweep."""
        return [RunId(member) for member in await self._redis.members(LIVE_KEY)]

    async def forget(self, run_id: RunId) -> None:
        """Leave the run out of later sweeps."""
        await self._redis.remove_member(LIVE_KEY, run_id)

    @property
    def _run_quotas(self) -> tuple[int, int]:
        """Quotas as the scripts take them."""
        return self._quotas.bytes_per_run, self._quotas.open_tasks_per_run

    async def _enter(self, run_id: RunId) -> None:
        """Note that the run is there and has something to sweep."""
        await self._redis.add_member(RUNS_KEY, run_id)
        await self._redis.add_member(LIVE_KEY, run_id)


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
