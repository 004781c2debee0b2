"""What bench_queue measures: the same operations through the service and on Redis itself, and the system under them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import psutil
from headrace.v1 import queue_service_pb2, queue_service_pb2_grpc
from redis.asyncio import Redis

from services.common.convert.queue import partition_to_proto
from services.common.convert.task import task_to_proto
from services.common.rpc.channel import open_channel
from services.common.types import OnStale, Partition, RunId, RunSettings, TaskId, WhenFull
from services.queue.keys import body_key, payload_key, run_key
from services.queue.records import StoredTask
from services.queue.scripts import load_script
from services.queue.store import QueueStore
from tests.factories import make_task
from tests.redis_server import free_port, running_server

CHUNK = 2048
START_SECONDS = 30.0
CALL_SECONDS = 60.0
MAX_BYTES = 32 * 1024 * 1024
WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.003
UNTAKEN_SECONDS = 600
CONFIG = """
[model]
build = "tiny_qwen3"
[data]
source = "reasoning_gym:chain_sum"
[queue]
quota_bytes = 0
quota_open_tasks = 0
"""


@dataclass(kw_only=True)
class System:
    """A Redis, the queue service on it, and ways to both."""

    store: QueueStore
    redis: Redis
    stub: queue_service_pb2_grpc.QueueServiceStub
    service: psutil.Process
    server: psutil.Process

    def cpu_seconds(self):
        """CPU time so far of this process, the service and Redis."""
        return [sum(process.cpu_times()[:2]) for process in (psutil.Process(), self.service, self.server)]


@contextmanager
def running_service(folder, url):
    """Run the queue service inside the block; yields its address and its process."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "bench.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "services.queue", "--config", str(config), "--queue.address", address]
    environment = {**os.environ, "HEADRACE_REDIS_URL": url}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


@asynccontextmanager
async def running_system(folder, *options):
    """Run Redis and the service inside the block; `options` are Redis'."""
    with running_server(folder, *options) as url, running_service(folder, url) as (address, pid):
        store, redis = QueueStore(url), Redis.from_url(url)
        async with open_channel(address, default_timeout_seconds=CALL_SECONDS) as channel:
            await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
            server_pid = (await redis.info("server"))["process_id"]
            yield System(
                store=store,
                redis=redis,
                stub=queue_service_pb2_grpc.QueueServiceStub(channel),
                service=psutil.Process(pid),
                server=psutil.Process(server_pid),
            )
        await store.close()
        await redis.aclose()


async def begin(store, max_groups):
    """Create a run that takes so many groups; returns its id and epoch."""
    run_id = RunId(f"bench-{uuid.uuid4().hex[:8]}")
    settings = RunSettings(
        max_staleness=0,
        groups_per_version=max_groups,
        on_stale=OnStale.REFILL,
        max_member_issues=3,
        lease_seconds=3600.0,
        max_queue_size=max_groups,
        max_queue_bytes=2**50,
        when_full=WhenFull.BLOCK,
        min_group_members=1,
    )
    epoch = (await store.runs.create(run_id, settings, owner_id="bench")).epoch
    await store.runs.register_version(run_id, epoch=epoch, version=0, digest="d")
    return run_id, epoch


async def feed(store, run_id, epoch, *, first, number, group_size):
    """Feed tasks, as many as wanted, in chunks."""
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
    """The operations over redis-py alone: each script is an EVALSHA of its own, and a payload travels with its put."""

    def __init__(self, system, run_id, epoch):
        self.redis, self.run_id, self.epoch = system.redis, run_id, epoch
        self.key = run_key(run_id)
        self.bodies = {}

    async def prepare(self):
        for name in ("lease_tasks", "put_trajectories", "lease_batch", "commit_batch"):
            await self.redis.script_load(load_script(name).source)

    async def _run(self, script, *words):
        status, *answer = await self.redis.evalsha(load_script(script).sha, 1, self.key, *words)
        assert status == b"ok"
        return answer

    async def lease_members(self, number):
        token = secrets.token_hex(8)
        _, _, _, *rows = await self._run("lease_tasks", number, 0, token)
        members = []
        for row in rows:
            partition, task, attempt, member, issue, _, _, _, content = row.decode().split()
            body = body_key(self.run_id, partition, task, content)
            if body not in self.bodies:
                self.bodies[body] = await self.redis.get(body)
            members.append((partition, task, attempt, member, f"{issue}/{token}"))
        return members

    async def put(self, members, payload):
        pipeline = self.redis.pipeline(transaction=False)
        words = []
        for member in members:
            name = "{}/{}/{}/{}/{}".format(*member)
            pipeline.set(payload_key(self.run_id, name), payload, nx=True, ex=UNTAKEN_SECONDS)
            words += [*member, "", 0, len(payload)]
        pipeline.evalsha(load_script("put_trajectories").sha, 1, self.key, *words)
        *_, answer = await pipeline.execute()
        assert set(answer[2:]) == {b"accepted"}

    async def batch(self, number):
        deadline = time.monotonic() + WAIT_SECONDS
        words = (self.epoch, "train", number, 0, MAX_BYTES, uuid.uuid4().hex)
        while True:
            _, _, _, _, *rows = await self._run("lease_batch", *words)
            if rows or time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_SECONDS)
        names = [
            f"train/{row[0].decode()}/{row[1]}/{member}/{issue.decode()}"
            for row in rows
            for member, issue in zip(row[5::3], row[6::3], strict=True)
        ]
        payloads = iter(await self.redis.mget([payload_key(self.run_id, name) for name in names]) if names else [])
        return [(row[0].decode(), int(row[1]), [next(payloads) for _ in row[5::3]]) for row in rows]

    async def commit(self, number, groups):
        columns = [[task, attempt, "consumed", -1] for task, attempt, _ in groups]
        await self._run("commit_batch", self.epoch, "train", number, 0, 0, json.dumps(columns))


class ThroughGrpc:
    """The operations through the service, each a call of its own."""

    def __init__(self, system, run_id, epoch):
        self.stub = system.stub
        self.common = {"run_id": run_id}
        self.train = {"epoch": epoch, "partition": partition_to_proto(Partition.TRAIN), **self.common}

    async def prepare(self):
        pass

    async def lease_members(self, number):
        request = queue_service_pb2.LeaseTasksRequest(replica_id="bench", max_members=number, **self.common)
        response = await self.stub.LeaseTasks(request)
        return list(response.assignments)

    async def put(self, members, payload):
        request = queue_service_pb2.PutTrajectoriesRequest(**self.common)
        for member in members:
            request.records.add(key=member.key, lease_id=member.lease_id, trajectory=payload)
        response = await self.stub.PutTrajectories(request)
        assert set(response.outcomes) == {queue_service_pb2.PUT_OUTCOME_ACCEPTED}

    async def batch(self, number):
        request = queue_service_pb2.LeaseBatchRequest(
            num_groups=number, wait_seconds=WAIT_SECONDS, request_id=uuid.uuid4().hex, **self.train
        )
        response = await self.stub.LeaseBatch(request)
        return [(group.task_id, group.attempt, group.trajectories) for group in response.groups]

    async def commit(self, number, groups):
        request = queue_service_pb2.CommitBatchRequest(commit_number=number, **self.train)
        for task_id, attempt, _ in groups:
            outcome = queue_service_pb2.GROUP_OUTCOME_CONSUMED
            request.results.add(task_id=task_id, attempt=attempt, outcome=outcome)
        await self.stub.CommitBatch(request)
