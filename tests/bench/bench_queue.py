"""Speed and memory of the queue.

`payloads`: trajectories of each size through the service, a process of its own, against exactly the same operations,
script by script, straight from this process over redis-py at the same concurrency: 16 replicas and one trainer, which
leases whole batches and commits them. Three shapes:
`put_lease_commit`   every member was leased before the clock starts; each is put with a call of its own, leased in a
                     batch and committed. The ratio at 64 KB of it is the one with a target.
`whole_cycle_1_slot` members are leased by the clock as well, one per call: two calls per trajectory.
`whole_cycle_8_slots` replicas lease up to eight members per call and put them with one call, as a rollouter does.
Rounds alternate, and each way counts its fastest, since other load on the machine only ever slows. `cpu_us` is what one
trajectory costs this process, the service and Redis in the round that cost least; it tells more than the rate where the
processes share cores.
`lease_ms`: median time of a batch lease at growing numbers of queued groups.
`redis_memory`: growth of Redis' used memory, connections apart, per queued trajectory and over its payload.
`resident`: resident memory of the service at the end of many operations over that after the first tenth of them.
`append_only_per_second`: trajectories through the service by what Redis does with its append-only log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from services.common.types import Partition
from services.queue.records import PutRecord
from tests.bench.queue_ways import CHUNK, ThroughGrpc, ThroughRedis, begin, feed, running_system

TARGET_RATIO = 0.5
TARGET_SLOWDOWN = 1.5
TARGET_MEMORY = 1.3
TARGET_GROWTH = 1.1
CONCURRENCY = 16
GROUP_SIZE = 8
SHAPES = {"put_lease_commit": None, "whole_cycle_1_slot": 1, "whole_cycle_8_slots": 8}
"""Members per call of a replica; None: one, leased before the clock starts."""
TARGET_SHAPE = "put_lease_commit"
GROUPS_PER_BATCH = 16
KILOBYTE = 1024
MAX_SECONDS = 1800.0
SIZES = {"4KB": 4 * KILOBYTE, "64KB": 64 * KILOBYTE, "1MB": 1024 * KILOBYTE}
MAX_ROUND_BYTES = 192 * 1024 * KILOBYTE
APPEND_ONLY = {
    "off": ("--appendonly", "no"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}


async def move(way, num_groups, payload, *, leased, slots):
    """Replicas put what was leased before, or what they lease, while a trainer leases and commits all groups."""

    async def replica():
        if leased is None:
            while members := await way.lease_members(slots):
                await way.put(members, payload)
        else:
            while leased:
                await way.put([leased.pop()], payload)

    async def trainer():
        number, left = 0, num_groups
        while left:
            groups = await way.batch(min(left, GROUPS_PER_BATCH))
            assert all(len(payloads) == GROUP_SIZE for _, _, payloads in groups)
            left -= len(groups)
            if groups:
                number += 1
                await way.commit(number, groups)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trainer())
        for _ in range(CONCURRENCY):
            tasks.create_task(replica())


async def measure_round(system, make_way, *, num_groups, num_bytes, shape):
    """One round; returns trajectories per second, and CPU microseconds per trajectory of each process."""
    run_id, epoch = await begin(system.store, num_groups)
    await feed(system.store, run_id, epoch, first=0, number=num_groups, group_size=GROUP_SIZE)
    way = make_way(system, run_id, epoch)
    await way.prepare()
    payload = os.urandom(num_bytes)
    number, slots = num_groups * GROUP_SIZE, SHAPES[shape]
    # In the order in which they are put: from the end of the list.
    leased = (await way.lease_members(number))[::-1] if slots is None else None
    before, started = system.cpu_seconds(), time.perf_counter()
    await move(way, num_groups, payload, leased=leased, slots=slots)
    seconds = time.perf_counter() - started
    spent = [1e6 * (now - then) / number for now, then in zip(system.cpu_seconds(), before, strict=True)]
    return number / seconds, spent


def num_groups_for(num_bytes, quick):
    """How many groups a round moves: enough to be measured, few enough to fit."""
    return min(32 if quick else 160, MAX_ROUND_BYTES // (num_bytes * GROUP_SIZE))


async def measure_payloads(system, *, quick):
    """Compare both ways at each size and in each shape."""
    figures = {}
    for label, num_bytes in SIZES.items():
        figures[label] = {
            shape: await compare(system, num_bytes=num_bytes, shape=shape, quick=quick) for shape in SHAPES
        }
    return figures


async def compare(system, *, num_bytes, shape, quick):
    """Alternate rounds through gRPC and through Redis."""
    ways = {"grpc": ThroughGrpc, "redis": ThroughRedis}
    rounds = {name: [] for name in ways}
    num_groups = num_groups_for(num_bytes, quick)
    for _ in range(2 if quick else 6):
        for name, way in ways.items():
            done = await measure_round(system, way, num_groups=num_groups, num_bytes=num_bytes, shape=shape)
            rounds[name].append(done)
    rates = {name: max(rate for rate, _ in done) for name, done in rounds.items()}
    spent = {name: min((cpu for _, cpu in done), key=sum) for name, done in rounds.items()}
    return {
        **{f"{name}_per_second": round(rate, 1) for name, rate in rates.items()},
        "grpc_to_redis": round(rates["grpc"] / rates["redis"], 3),
        "cpu_us": {
            name: dict(zip(("client", "service", "redis"), map(round, cpu), strict=True)) for name, cpu in spent.items()
        },
    }


async def fill(store, run_id, epoch, *, first, number, group_size, payload):
    """Bring groups to ready, many members per call."""
    await feed(store, run_id, epoch, first=first, number=number, group_size=group_size)
    left = number * group_size
    per_call = max(1, min(CHUNK, 16 * 1024 * KILOBYTE // len(payload)))
    while left:
        leased = await store.tasks.lease(run_id, max_members=min(left, per_call), policy_version=0)
        records = [PutRecord(key=item.key, lease_id=item.lease_id, payload=payload) for item in leased.assignments]
        await store.trajectories.put(run_id, records)
        left -= len(records)


async def measure_lease_ms(system, *, quick):
    """Median time of a lease of one group through gRPC, at each size of the queue; the best of a few bursts."""
    sizes = [1_000, 10_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    tries, bursts = (20, 3) if quick else (50, 8)
    run_id, epoch = await begin(system.store, 2 * max(sizes))
    way = ThroughGrpc(system, run_id, epoch)
    payload = os.urandom(KILOBYTE)
    medians, filled = {}, 0
    for size in sizes:
        await fill(system.store, run_id, epoch, first=filled, number=size - filled, group_size=1, payload=payload)
        filled = size
        times = []
        # The first burst warms up and does not count.
        for _ in range(bursts + 1):
            burst = []
            for _ in range(tries):
                started = time.perf_counter()
                groups = await way.batch(1)
                burst.append(time.perf_counter() - started)
                assert len(groups) == 1
            times.append(statistics.median(burst))
            await system.store.batches.release(run_id, epoch=epoch, partition=Partition.TRAIN)
        medians[str(size)] = round(1000 * min(times[1:]), 3)
    return medians


async def used_memory(redis):
    """Bytes that Redis uses, but for what its connections use."""
    memory = await redis.info("memory")
    return memory["used_memory"] - memory["mem_clients_normal"]


async def measure_redis_memory(system, *, quick):
    """Memory per queued trajectory at each size, its group, task and bookkeeping included."""
    figures = {"allocator": (await system.redis.info("memory"))["mem_allocator"]}
    for label, num_bytes in SIZES.items():
        number = num_groups_for(num_bytes, quick)
        run_id, epoch = await begin(system.store, number)
        before = await used_memory(system.redis)
        payload = os.urandom(num_bytes)
        await fill(system.store, run_id, epoch, first=0, number=number, group_size=GROUP_SIZE, payload=payload)
        per_trajectory = (await used_memory(system.redis) - before) / (number * GROUP_SIZE)
        figures[label] = {"bytes": round(per_trajectory), "to_payload": round(per_trajectory / num_bytes, 3)}
    return figures


async def measure_resident(system, *, quick):
    """Memory of the service over many leases and puts of members through gRPC."""
    groups_per_cycle = 64
    per_cycle = 2 * groups_per_cycle * GROUP_SIZE
    num_cycles = -(-(100_000 if quick else 1_000_000) // per_cycle)
    run_id, epoch = await begin(system.store, num_cycles * groups_per_cycle)
    way = ThroughGrpc(system, run_id, epoch)
    payload = os.urandom(KILOBYTE)
    warm = 0
    for cycle in range(num_cycles):
        first = cycle * groups_per_cycle
        await feed(system.store, run_id, epoch, first=first, number=groups_per_cycle, group_size=GROUP_SIZE)
        await way.put(await way.lease_members(groups_per_cycle * GROUP_SIZE), payload)
        await way.commit(cycle + 1, await way.batch(groups_per_cycle))
        if cycle == num_cycles // 10:
            warm = system.service.memory_info().rss
    end = system.service.memory_info().rss
    megabytes = {"after_warm_up_mb": round(warm / 2**20, 1), "at_end_mb": round(end / 2**20, 1)}
    return {"operations": num_cycles * per_cycle, **megabytes, "growth": round(end / warm, 3)}


async def measure_append_only(folder, *, quick):
    """Rate through gRPC under each setting of Redis' append-only log, on the disk of the temporary folder."""
    rates = {}
    num_bytes = SIZES["64KB"]
    load = {"num_groups": num_groups_for(num_bytes, quick), "num_bytes": num_bytes, "shape": TARGET_SHAPE}
    for name, options in APPEND_ONLY.items():
        place = folder / name
        place.mkdir()
        async with running_system(place, *options) as system:
            rounds = [await measure_round(system, ThroughGrpc, **load) for _ in range(2 if quick else 3)]
        rates[name] = round(max(rate for rate, _ in rounds), 1)
    return rates


async def measure(folder, *, quick):
    figures = {}
    async with running_system(folder) as system:
        figures["payloads"] = await measure_payloads(system, quick=quick)
    figures["append_only_per_second"] = await measure_append_only(folder, quick=quick)
    for name, part in (
        ("redis_memory", measure_redis_memory),
        ("resident", measure_resident),
        ("lease_ms", measure_lease_ms),
    ):
        place = folder / name
        place.mkdir()
        async with running_system(place) as system:
            figures[name] = await part(system, quick=quick)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        figures = asyncio.run(asyncio.wait_for(measure(Path(name), quick=quick), MAX_SECONDS))
    medians = list(figures["lease_ms"].values())
    figures["grpc_to_redis"] = figures["payloads"]["64KB"][TARGET_SHAPE]["grpc_to_redis"]
    figures["lease_slowdown"] = round(max(medians) / min(medians), 3)
    figures["memory_to_payload"] = figures["redis_memory"]["64KB"]["to_payload"]
    figures["resident_growth"] = figures["resident"]["growth"]
    at_least = {"grpc_to_redis": TARGET_RATIO}
    at_most = {
        "lease_slowdown": TARGET_SLOWDOWN,
        "memory_to_payload": TARGET_MEMORY,
        "resident_growth": TARGET_GROWTH,
    }
    met = all(figures[key] >= bound for key, bound in at_least.items()) and all(
        figures[key] <= bound for key, bound in at_most.items()
    )
    print(json.dumps({"bench": "queue", "figures": figures, "targets": at_least | at_most, "met": met}))


if __name__ == "__main__":
    main()
