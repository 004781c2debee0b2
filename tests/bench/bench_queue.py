"""Speed of the queue: what gRPC costs on top of Redis, and whether a long queue is a slow one.

`through_grpc` is put, lease and commit of 64 KB trajectories through the service, a process of its own; `through_redis`
are the same operations, script by script, straight from this process over redis-py at the same concurrency; `plain` is
SET, MGET and UNLINK of the same bytes, without groups, leases or ledger. Runs alternate, and each counts its fastest,
since other load on the machine only ever slows. `lease_ms` is the median time of a batch lease at growing numbers of
groups.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from headrace.v1 import queue_service_pb2, queue_service_pb2_grpc
from redis.asyncio import Redis

from services.common.convert.queue import partition_to_proto
from services.common.convert.task import task_to_proto
from services.common.rpc.channel import open_channel
from services.common.types import GroupOutcome, GroupResult, OnStale, Partition, RunId, RunSettings, TaskId, WhenFull
from services.queue.records import PutRecord, StoredTask
from services.queue.store import QueueStore
from tests.factories import make_task
from tests.redis_server import free_port, running_server

TARGET_RATIO = 0.5
TARGET_SLOWDOWN = 1.5
CONCURRENCY = 16
GROUP_SIZE = 8
GROUPS_PER_BATCH = 16
PAYLOAD_BYTES = 64 * 1024
SMALL_BYTES = 1024
CHUNK = 2048
START_SECONDS = 30.0
CONFIG = '[model]\nbuild = "tiny_qwen3"\n[data]\nsource = "reasoning_gym:chain_sum"\n'


def new_run() -> RunId:
    return RunId(f"bench-{uuid.uuid4().hex[:8]}")


async def begin(store, run_id, num_groups):
    settings = RunSettings(
        max_staleness=0,
        groups_per_version=num_groups,
        on_stale=OnStale.REFILL,
        max_member_issues=3,
        lease_seconds=3600.0,
        max_queue_size=num_groups,
        max_queue_bytes=2**50,
        when_full=WhenFull.BLOCK,
        min_group_members=1,
    )
    epoch = (await store.runs.create(run_id, settings, owner_id="bench")).epoch
    await store.runs.register_version(run_id, epoch=epoch, version=0, digest="d")
    return epoch


async def feed(store, run_id, epoch, *, first, number, group_size):
    for start in range(first, first + number, CHUNK):
        tasks = [
            StoredTask(
                task_id=TaskId(f"{at:08d}"),
                partition=Partition.TRAIN,
                sequence=at,
                group_size=group_size,
                body=task_to_proto(make_task(at)).SerializeToString(),
            )
            for at in range(start, min(start + CHUNK, first + number))
        ]
        answer = await store.tasks.enqueue(run_id, tasks, epoch=epoch, partition=Partition.TRAIN)
        assert answer.num_accepted == len(tasks)


class ThroughRedis:
    """The operations, straight on the store."""

    def __init__(self, store, run_id, epoch):
        self.store, self.run_id, self.epoch = store, run_id, epoch

    async def lease_members(self, number):
        leased = await self.store.tasks.lease(self.run_id, max_members=number, policy_version=0)
        return [(item.key, item.lease_id) for item in leased.assignments]

    async def put(self, key, lease_id, payload):
        record = PutRecord(key=key, lease_id=lease_id, payload=payload, oldest_version=0)
        await self.store.trajectories.put(self.run_id, [record])

    async def batch(self, number):
        batch = await self.store.batches.lease(
            self.run_id,
            epoch=self.epoch,
            partition=Partition.TRAIN,
            num_groups=number,
            use_version=0,
            request_id=uuid.uuid4().hex,
            wait_seconds=10.0,
        )
        return [(group.task_id, group.attempt, group.payloads) for group in batch.groups]

    async def commit(self, number, groups):
        results = [
            GroupResult(task_id=task_id, attempt=attempt, outcome=GroupOutcome.CONSUMED)
            for task_id, attempt, _ in groups
        ]
        await self.store.batches.commit(
            self.run_id, results, epoch=self.epoch, partition=Partition.TRAIN, commit_number=number, policy_version=0
        )


class ThroughGrpc:
    """The operations, through the service."""

    def __init__(self, stub, run_id, epoch):
        self.stub, self.epoch = stub, epoch
        self.common = {"run_id": run_id}
        self.train = {"epoch": epoch, "partition": partition_to_proto(Partition.TRAIN), **self.common}

    async def lease_members(self, number):
        request = queue_service_pb2.LeaseTasksRequest(replica_id="bench", max_members=number, **self.common)
        response = await self.stub.LeaseTasks(request)
        return [(item.key, item.lease_id) for item in response.assignments]

    async def put(self, key, lease_id, payload):
        record = queue_service_pb2.TrajectoryRecord(key=key, lease_id=lease_id, trajectory=payload)
        await self.stub.PutTrajectories(queue_service_pb2.PutTrajectoriesRequest(records=[record], **self.common))

    async def batch(self, number):
        request = queue_service_pb2.LeaseBatchRequest(
            num_groups=number, wait_seconds=10.0, request_id=uuid.uuid4().hex, **self.train
        )
        response = await self.stub.LeaseBatch(request)
        return [(group.task_id, group.attempt, group.trajectories) for group in response.groups]

    async def commit(self, number, groups):
        results = [
            queue_service_pb2.GroupResult(
                task_id=task_id, attempt=attempt, outcome=queue_service_pb2.GROUP_OUTCOME_CONSUMED
            )
            for task_id, attempt, _ in groups
        ]
        await self.stub.CommitBatch(
            queue_service_pb2.CommitBatchRequest(results=results, commit_number=number, **self.train)
        )


async def trajectories_per_second(way, num_groups):
    """Rollouters lease and put while a trainer leases and commits."""
    payload = os.urandom(PAYLOAD_BYTES)

    async def rollouter():
        while members := await way.lease_members(1):
            for key, lease_id in members:
                await way.put(key, lease_id, payload)

    async def trainer():
        number, left = 0, num_groups
        while left:
            groups = await way.batch(min(left, GROUPS_PER_BATCH))
            assert all(len(payloads) == GROUP_SIZE for _, _, payloads in groups)
            left -= len(groups)
            if groups:
                number += 1
                await way.commit(number, groups)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trainer())
        for _ in range(CONCURRENCY):
            tasks.create_task(rollouter())
    return num_groups * GROUP_SIZE / (time.perf_counter() - started)


async def plain_per_second(redis, num_groups):
    payload = os.urandom(PAYLOAD_BYTES)
    names = [f"plain:{at}" for at in range(num_groups * GROUP_SIZE)]
    waiting = iter(names)

    async def writer():
        for name in waiting:
            await redis.set(name, payload)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(writer())
    size = GROUPS_PER_BATCH * GROUP_SIZE
    for at in range(0, len(names), size):
        await redis.mget(names[at : at + size])
        await redis.unlink(*names[at : at + size])
    return len(names) / (time.perf_counter() - started)


async def fill(store, run_id, epoch, *, first, number):
    """Bring groups of one member to ready."""
    await feed(store, run_id, epoch, first=first, number=number, group_size=1)
    payload = os.urandom(SMALL_BYTES)
    left = number
    while left:
        leased = await store.tasks.lease(run_id, max_members=min(left, CHUNK), policy_version=0)
        records = [PutRecord(key=item.key, lease_id=item.lease_id, payload=payload) for item in leased.assignments]
        await store.trajectories.put(run_id, records)
        left -= len(records)


async def lease_milliseconds(store, stub, sizes, tries):
    """Median time of a lease of one group, through gRPC, at each size of the queue."""
    run_id = new_run()
    epoch = await begin(store, run_id, 2 * max(sizes))
    way = ThroughGrpc(stub, run_id, epoch)
    medians, fed = {}, 0
    for size in sizes:
        await fill(store, run_id, epoch, first=fed, number=size - fed)
        fed = size
        times = []
        for _ in range(tries):
            started = time.perf_counter()
            groups = await way.batch(1)
            times.append(time.perf_counter() - started)
            assert len(groups) == 1
        await store.batches.release(run_id, epoch=epoch, partition=Partition.TRAIN)
        medians[size] = 1000 * statistics.median(times)
    return medians


async def measure(url, address, *, quick):
    num_groups, rounds = (32, 2) if quick else (192, 5)
    sizes = [1_000, 10_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    store, redis = QueueStore(url), Redis.from_url(url)
    async with open_channel(address, default_timeout_seconds=60.0) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
        rates = {"through_grpc": [], "through_redis": [], "plain": []}
        for _ in range(rounds):
            for name, way, link in (("through_grpc", ThroughGrpc, stub), ("through_redis", ThroughRedis, store)):
                run_id = new_run()
                epoch = await begin(store, run_id, num_groups)
                await feed(store, run_id, epoch, first=0, number=num_groups, group_size=GROUP_SIZE)
                rates[name].append(await trajectories_per_second(way(link, run_id, epoch), num_groups))
            rates["plain"].append(await plain_per_second(redis, num_groups))
        medians = await lease_milliseconds(store, stub, sizes, tries=50 if quick else 200)
    await store.close()
    await redis.aclose()
    figures = {f"{name}_per_second": round(max(values), 1) for name, values in rates.items()}
    figures["grpc_to_redis"] = round(max(rates["through_grpc"]) / max(rates["through_redis"]), 3)
    figures["grpc_to_plain"] = round(max(rates["through_grpc"]) / max(rates["plain"]), 3)
    figures["lease_ms"] = {str(size): round(median, 3) for size, median in medians.items()}
    figures["lease_slowdown"] = round(max(medians.values()) / medians[sizes[0]], 3)
    return figures


def start_service(folder, url, address):
    config = folder / "bench.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "services.queue", "--config", str(config), "--queue.address", address]
    environment = {**os.environ, "HEADRACE_REDIS_URL": url}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name, running_server(Path(name)) as url:
        address = f"127.0.0.1:{free_port()}"
        service = start_service(Path(name), url, address)
        try:
            figures = asyncio.run(measure(url, address, quick=quick))
        finally:
            service.terminate()
            service.wait(timeout=20)
    met = figures["grpc_to_redis"] >= TARGET_RATIO and figures["lease_slowdown"] <= TARGET_SLOWDOWN
    targets = {"grpc_to_redis": TARGET_RATIO, "lease_slowdown": TARGET_SLOWDOWN}
    print(json.dumps({"bench": "queue", "figures": figures, "targets": targets, "met": met}))


if __name__ == "__main__":
    main()
