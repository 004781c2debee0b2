"""Plays trainer and rollouter against a store, so that a test reads as the story it tells."""

from __future__ import annotations

import uuid
from dataclasses import replace

from services.common.types import (
    DropReason,
    FailureReason,
    GroupOutcome,
    GroupResult,
    OnStale,
    Partition,
    ReleaseReason,
    RunSettings,
    TaskId,
    WhenFull,
)
from services.queue.records import PutRecord, StoredTask

SETTINGS = RunSettings(
    max_staleness=0,
    groups_per_version=4,
    on_stale=OnStale.REFILL,
    max_member_issues=3,
    lease_seconds=30.0,
    max_queue_size=100,
    max_queue_bytes=10**9,
    when_full=WhenFull.BLOCK,
    min_group_members=1,
)


def stored_task(
    sequence: int, *, group_size: int = 2, body: bytes = b"", partition: Partition = Partition.TRAIN
) -> StoredTask:
    return StoredTask(
        task_id=TaskId(f"{sequence:08d}"),
        partition=partition,
        sequence=sequence,
        group_size=group_size,
        body=body or f"body of {sequence}".encode(),
    )


class Driver:
    def __init__(self, store, run_id) -> None:
        self.store = store
        self.run_id = run_id
        self.epoch = 0
        self.version = 0
        self.settings = SETTINGS

    async def create(self, owner="trainer-1", **changes):
        wanted = replace(self.settings, **changes)
        state = await self.store.runs.create(self.run_id, wanted, owner_id=owner)
        self.settings = wanted
        self.epoch = state.epoch
        return state

    async def begin(self, version=0, **changes):
        """Create the run and register its first version."""
        await self.create(**changes)
        await self.register(version)

    async def register(self, version, **options):
        await self.store.runs.register_version(
            self.run_id, epoch=self.epoch, version=version, digest=f"digest-{version}", **options
        )
        self.version = version

    async def feed(self, *sequences, partition=Partition.TRAIN, group_size=2, tasks=None, **options):
        tasks = tasks or [stored_task(at, group_size=group_size, partition=partition) for at in sequences]
        return await self.store.tasks.enqueue(self.run_id, tasks, epoch=self.epoch, partition=partition, **options)

    async def lease(self, max_members=1, version=None, **options):
        found = await self.store.tasks.lease(
            self.run_id,
            max_members=max_members,
            policy_version=self.version if version is None else version,
            **options,
        )
        return list(found.assignments)

    async def put(self, *assignments, version=None, payload=b"trajectory"):
        records = [
            PutRecord(
                key=item.key,
                lease_id=item.lease_id,
                payload=payload,
                oldest_version=self.version if version is None else version,
            )
            for item in assignments
        ]
        return list(await self.store.trajectories.put(self.run_id, records))

    async def fail(self, *assignments, reason=FailureReason.ENGINE_ERROR):
        records = [PutRecord(key=item.key, lease_id=item.lease_id, failure=reason) for item in assignments]
        return list(await self.store.trajectories.put(self.run_id, records))

    async def release(self, *assignments, reason=ReleaseReason.DRAIN):
        return await self.store.tasks.release(self.run_id, [item.lease_id for item in assignments], reason)

    async def extend(self, *assignments):
        return await self.store.tasks.extend(self.run_id, [item.lease_id for item in assignments])

    async def expire(self, *assignments):
        """Let the deadlines of leases pass, and sweep."""
        redis = self.store._redis._redis
        for item in assignments:
            partition, _, name = item.lease_id.partition("/")
            await redis.zadd(f"hr:{{{self.run_id}}}:{partition}:leases", {name: 0}, xx=True)
        await self.store.runs.sweep(self.run_id)

    async def produce(self, max_members=1000, version=None):
        """Lease what there is and put it."""
        assignments = await self.lease(max_members, version=version)
        await self.put(*assignments, version=version)
        return assignments

    async def batch(self, num_groups=1, *, partition=Partition.TRAIN, use_version=None, request_id=None, **options):
        return await self.store.batches.lease(
            self.run_id,
            epoch=self.epoch,
            partition=partition,
            num_groups=num_groups,
            use_version=self.version if use_version is None else use_version,
            request_id=request_id or uuid.uuid4().hex,
            **options,
        )

    async def commit(self, number, groups, *, outcome=GroupOutcome.CONSUMED, partition=Partition.TRAIN, **options):
        reason = DropReason.STALE if outcome is GroupOutcome.DROPPED else None
        results = [
            GroupResult(
                task_id=group.task_id,
                attempt=group.attempt,
                outcome=outcome,
                drop_reason=reason,
                sequence=group.sequence,
            )
            for group in groups
        ]
        options.setdefault("policy_version", self.version)
        return await self.store.batches.commit(
            self.run_id, results, epoch=self.epoch, partition=partition, commit_number=number, **options
        )

    async def release_batch(self, partition=Partition.TRAIN):
        return await self.store.batches.release(self.run_id, epoch=self.epoch, partition=partition)

    async def keys(self, pattern="*"):
        """Every key of the run that fits, without the part that all share."""
        redis = self.store._redis._redis
        prefix = f"hr:{{{self.run_id}}}:"
        return sorted(key.decode().removeprefix(prefix) for key in await redis.keys(prefix + pattern))

    async def snapshot(self):
        """What the server holds of the run now."""
        redis = self.store._redis._redis
        return {key: await redis.dump(key) for key in await redis.keys(f"hr:{{{self.run_id}}}:*")}

    async def restore(self, snapshot):
        """Give the server what it held at a snapshot; an empty one is a loss of everything."""
        redis = self.store._redis._redis
        for key in await redis.keys(f"hr:{{{self.run_id}}}:*"):
            await redis.delete(key)
        for key, value in snapshot.items():
            await redis.restore(key, 0, value)

    async def account(self):
        account = await self.store.accounts.read(self.run_id)
        for ledger in account.ledgers:
            assert ledger.tasks.lost == 0, ledger
            assert ledger.trajectories.lost == 0, ledger
        return account

    async def ledger(self, partition=Partition.TRAIN):
        return next(item for item in (await self.account()).ledgers if item.partition is partition)

    async def nothing_was_stale(self):
        ledger = await self.ledger()
        return (ledger.tasks.dropped, ledger.tasks.refilled, ledger.trajectories.released) == ({}, 0, {})

    async def stats(self, partition=Partition.TRAIN):
        return next(item for item in (await self.account()).stats.partitions if item.partition is partition)


def sequences(groups):
    return [group.sequence for group in groups]
