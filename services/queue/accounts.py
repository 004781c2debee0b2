"""Accounts: where every task and every issued member is or ended, read at one moment.

`open` and `in_flight` are counted from the queue itself, all other columns are counters; that both add up is proof
that nothing was lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.common.errors import InvalidInputError
from services.common.types import (
    DeadLetter,
    Ledger,
    OnStale,
    Partition,
    PartitionStats,
    ReplicaReport,
    ReplicaStatus,
    RunSettings,
    RunStats,
    TaskId,
    TaskLedger,
    TrajectoryLedger,
    WhenFull,
)
from services.queue.answers import expect_ok, text, texts
from services.queue.keys import run_key

if TYPE_CHECKING:
    from services.common.types import RunId
    from services.queue.connection import RedisConnection

_MS = 1000
_HEARD_WITHIN_MS = 3_600_000
_RECENT_SECONDS = 60.0
_MAX_LETTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Everything that is known of a run at one moment."""

    ledgers: tuple[Ledger, ...]
    """One per partition."""
    stats: RunStats
    """Depths, versions, replicas."""


class Accounts:
    """Accounts of all runs on one server."""

    def __init__(self, redis: RedisConnection) -> None:
        """Use the connection."""
        self._redis = redis

    async def read(self, run_id: RunId) -> Account:
        """Read the ledger, the depths and the replicas at one moment."""
        answer = await self._redis.run("read_run", run_key(run_id), _HEARD_WITHIN_MS)
        epoch, commit_number, policy_version, finished, settings, *rows, replicas = expect_ok(answer, run_id)
        stats = RunStats(
            partitions=tuple(_stats(row) for row in rows),
            policy_version=int(policy_version),
            epoch=int(epoch),
            commit_number=int(commit_number),
            replicas=_recent(_reports(replicas)),
            run_finished=bool(finished),
            settings=_settings(settings),
        )
        return Account(ledgers=tuple(_ledger(row) for row in rows), stats=stats)

    async def dead_letters(self, run_id: RunId, *, max_letters: int) -> list[DeadLetter]:
        """List the newest dead-lettered groups of all partitions, newest first."""
        if not 1 <= max_letters <= _MAX_LETTERS:
            raise InvalidInputError(f"max_letters is {max_letters}; use 1 to {_MAX_LETTERS}")
        answer = await self._redis.run("read_dead_letters", run_key(run_id), max_letters)
        partitions = expect_ok(answer, run_id)
        letters = [_letter(Partition(text(name)), json.loads(line)) for name, lines in partitions for line in lines]
        return sorted(letters, key=lambda letter: letter.time, reverse=True)[:max_letters]


def _letter(partition: Partition, values: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        partition=partition,
        task_id=TaskId(values["task_id"]),
        attempt=values["attempt"],
        sequence=values["sequence"],
        time=int(values["time_ms"]) / _MS,
        reasons=tuple(values["reasons"]),
    )


def _stats(row: list[Any]) -> PartitionStats:
    name, pending, in_flight, open_groups, ready, leased, payload_bytes, _, _, _, *rest = row
    held, queued_bytes, data_ended, asked, committed = (int(value) for value in rest)
    return PartitionStats(
        partition=Partition(text(name)),
        pending_members=int(pending),
        in_flight_members=int(in_flight),
        open_groups=int(open_groups) - int(ready) - int(leased),
        ready_groups=int(ready),
        leased_groups=int(leased),
        payload_bytes=int(payload_bytes),
        held_for_groups=held,
        queued_bytes=queued_bytes,
        data_ended=bool(data_ended),
        ask_age_seconds=asked / _MS if asked >= 0 else None,
        commit_age_seconds=committed / _MS if committed >= 0 else None,
    )


def _settings(row: list[Any]) -> RunSettings:
    staleness, groups, on_stale, issues, lease_ms, size, size_bytes, when_full, members = texts(row)
    return RunSettings(
        max_staleness=int(staleness),
        groups_per_version=int(groups),
        on_stale=OnStale(on_stale),
        max_member_issues=int(issues),
        lease_seconds=int(lease_ms) / _MS,
        max_queue_size=int(size),
        max_queue_bytes=int(size_bytes),
        when_full=WhenFull(when_full),
        min_group_members=int(members),
    )


def _ledger(row: list[Any]) -> Ledger:
    words = texts(row[7])
    counters = {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}

    def by_reason(column: str) -> dict[str, int]:
        prefix = f"{column}:"
        return {name.removeprefix(prefix): value for name, value in counters.items() if name.startswith(prefix)}

    tasks = TaskLedger(
        fed=counters.get("fed", 0),
        refilled=counters.get("refilled", 0),
        consumed=counters.get("consumed", 0),
        filtered=counters.get("filtered", 0),
        dropped=by_reason("dropped"),
        dead_lettered=counters.get("dead_lettered", 0),
        open=int(row[3]),
    )
    trajectories = TrajectoryLedger(
        issued=counters.get("issued", 0),
        put=counters.get("put", 0),
        duplicate=counters.get("duplicate", 0),
        lapsed=counters.get("lapsed", 0),
        failed=by_reason("failed"),
        released=by_reason("released"),
        in_flight=int(row[2]),
    )
    return Ledger(
        partition=Partition(text(row[0])),
        tasks=tasks,
        trajectories=trajectories,
        trained_twice=counters.get("trained_twice", 0),
        commits=counters.get("commits", 0),
        first_open_sequence=int(row[8]),
        ended_sequences=tuple(sorted(int(sequence) for sequence in row[9])),
    )


def _reports(replicas: list[Any]) -> tuple[ReplicaReport, ...]:
    words = texts(replicas)
    return tuple(
        ReplicaReport(status=ReplicaStatus(**json.loads(status)), age_seconds=int(age_ms) / _MS)
        for status, age_ms in zip(words[::2], words[1::2], strict=True)
    )


def _recent(reports: tuple[ReplicaReport, ...]) -> tuple[ReplicaReport, ...]:
    """Leave out who fell silent long ago, but of each service keep the newest, so that a dead one can be named."""
    newest: dict[str, float] = {}
    for report in reports:
        service = report.status.service
        newest[service] = min(report.age_seconds, newest.get(service, report.age_seconds))
    bounds = {service: max(_RECENT_SECONDS, age) for service, age in newest.items()}
    return tuple(report for report in reports if report.age_seconds <= bounds[report.status.service])
