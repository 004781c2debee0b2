"""The training loop on a real queue service and a real Redis, with rollouters that answer at once.

The backend is the small one of the unit tests: its weights depend on every batch and on the order of batches, so equal
weights mean that the same groups were trained on in the same steps.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack, asynccontextmanager

from redis.asyncio import Redis

from services.common.clients.queue import QueueClient
from services.common.errors import HeadraceError, RunFinishedError
from services.common.rpc.channel import open_channel
from services.common.types import Partition, ReplicaId, RunId, Score
from services.queue.config import ServiceConfig
from services.queue.server import serve
from tests.factories import make_row, make_trajectory
from tests.unit.trainer.fakes import make_trainer

RUN_ID = RunId("demo")


class HookedClient:
    """The queue's client, with something happening before or after a chosen call.

    Example: `HookedClient(client, {("after", "commit_batch", 2): wipe})` wipes after the second commit was answered.
    """

    def __init__(self, client, hooks=None):
        self._client = client
        self._hooks = hooks or {}
        self.counts = {}

    def __getattr__(self, name):
        method = getattr(self._client, name)

        async def call(*args, **kwargs):
            count = self.counts[name] = self.counts.get(name, 0) + 1
            await self._run("before", name, count)
            answer = await method(*args, **kwargs)
            await self._run("after", name, count)
            return answer

        return call

    async def _run(self, when, name, count):
        hook = self._hooks.get((when, name, count))
        if hook is not None:
            result = hook()
            if inspect.isawaitable(result):
                await result


class Snapshot:
    """All that a Redis server holds at one moment, to be put back later like an old file."""

    _TAKE = """
    local found = {}
    for _, key in ipairs(redis.call('KEYS', '*')) do
      found[#found + 1] = { key, math.max(0, redis.call('PTTL', key)), redis.call('DUMP', key) }
    end
    return found
    """

    def __init__(self, redis):
        self._redis = redis
        self._values = []

    async def take(self):
        self._values = await self._redis.eval(self._TAKE, 0)

    async def put_back(self):
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.flushall()
            for key, ttl, value in self._values:
                pipeline.restore(key, ttl, value)
            await pipeline.execute()


class Scene:
    """A queue service on a Redis server, rollouters, and trainers that come and go."""

    def __init__(self, redis, client, channel):
        self.redis = redis
        self.client = client
        self.channel = channel
        self.shelves = []
        self.delay = 0.0

    @property
    def served(self):
        """(version, digest) of everything that any trainer served."""
        return [(manifest.version, manifest.digest) for shelf in self.shelves for manifest in shelf.manifests]

    def newest_version(self):
        return max((version for version, _ in self.served), default=-1)

    def trainer(self, config, *, hooks=None, **options):
        trainer = make_trainer(config, HookedClient(self.client, hooks), **options)
        self.shelves.append(trainer.shelf)
        return trainer

    async def wipe(self):
        await self.redis.flushall()

    async def rollout(self):
        """Answer every task at once, with the newest version served; whatever the queue says, go on."""
        while True:
            try:
                if await self._rollout_once():
                    await asyncio.sleep(0.02)
            except RunFinishedError:
                return
            except HeadraceError:
                await asyncio.sleep(0.02)

    async def _rollout_once(self):
        version = self.newest_version()
        leased = await self.client.lease_tasks(
            ReplicaId("replica-a"), max_members=64, policy_version=version, wait_seconds=0.2
        )
        await asyncio.sleep(self.delay)
        results = [_answer(assignment, version) for assignment in leased.assignments]
        if results:
            await self.client.put_trajectories(results)
        return not results

    async def has_put(self, num_trajectories):
        """Wait until so many trajectories were put."""
        async with asyncio.timeout(30):
            while (await self.ledger()).trajectories.put < num_trajectories:
                await asyncio.sleep(0.02)

    async def ledger(self):
        return next(ledger for ledger in await self.client.get_ledger() if ledger.partition is Partition.TRAIN)


def _answer(assignment, version):
    sequence, member = assignment.task.sequence, assignment.key.member
    return make_trajectory(
        sequence,
        member,
        key=assignment.key,
        lease_id=assignment.lease_id,
        version=version,
        rows=(make_row(num_prompt=3 + sequence, version=version),),
        score=Score(reward=float((sequence + member) % 2), parts={}, scorer="fake", scorer_version="1"),
    )


@asynccontextmanager
async def training_scene(redis_url, *, run_id=RUN_ID):
    """Run the queue service and the rollouters inside the block."""
    bound, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(redis_url))
        await redis.flushall()
        service = asyncio.ensure_future(
            serve(ServiceConfig(redis_url=redis_url), on_bound=bound.set_result, stop=stop, handle_signals=False)
        )
        channel = open_channel(await asyncio.wait_for(bound, 10))
        scene = Scene(redis, QueueClient(channel, run_id), channel)
        rollouters = asyncio.ensure_future(scene.rollout())
        try:
            yield scene
        finally:
            rollouters.cancel()
            await asyncio.gather(rollouters, return_exceptions=True)
            await channel.close()
            stop.set()
            await service
