"""A queue, a reward service and the trainer's side of one run, for tests that start rollouters on them."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from services.common.clients.queue import QueueClient
from services.common.config import RunConfig
from services.common.rpc.channel import open_channel
from services.common.scoring import scorer_options
from services.common.tensors import build_manifest
from services.common.types import GroupOutcome, GroupResult, OnStale, Partition, RunId, RunSettings, WhenFull
from services.queue.config import ServiceConfig as QueueConfig
from services.queue.server import serve as serve_queue
from services.reward.config import ServiceConfig as RewardConfig
from services.reward.server import serve as serve_reward
from services.rollouter.config import service_config
from services.rollouter.server import serve as serve_rollouter
from services.trainer.policy_servicer import PolicyServicer, add_policy_servicer
from services.trainer.policy_store import PolicyStore
from tests.factories import make_task
from tests.integration.serving import serving
from tests.redis_server import free_port

SETTINGS = RunSettings(
    max_staleness=1,
    groups_per_version=4,
    on_stale=OnStale.REFILL,
    max_member_issues=2,
    lease_seconds=1.0,
    max_queue_size=64,
    max_queue_bytes=10**9,
    when_full=WhenFull.BLOCK,
    min_group_members=1,
)
START_SECONDS = 20.0


@asynccontextmanager
async def running(serve, *args, **kwargs):
    """Run a service inside the block and yield its address; at the end it is told to stop."""
    bound = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(*args, on_bound=bound.set_result, stop=stop, handle_signals=False, **kwargs))
        try:
            yield await asyncio.wait_for(bound, START_SECONDS)
        finally:
            stop.set()


class Trainer:
    """Plays the trainer: feeds tasks, publishes versions, takes batches."""

    def __init__(self, queue, run_id, store, model_folder):
        self.queue = queue
        self.run_id = run_id
        self.store = store
        self.model = AutoModelForCausalLM.from_pretrained(model_folder)
        self.epoch = 0
        self.manifests = {}

    async def create_run(self, settings=SETTINGS):
        self.epoch = (await self.queue.create_run(settings, owner_id=uuid.uuid4().hex)).epoch

    async def publish(self, version, *, shift=0.0):
        tensors = {name: (tensor + shift).contiguous() for name, tensor in self.model.state_dict().items()}
        del tensors["lm_head.weight"]
        manifest = build_manifest(
            tensors,
            run_id=self.run_id,
            epoch=self.epoch,
            version=version,
            tied={"lm_head.weight": "model.embed_tokens.weight"},
        )
        await self.queue.register_version(version, epoch=self.epoch, digest=manifest.digest)
        self.store.publish(manifest, tensors)
        self.manifests[version] = manifest

    async def feed(self, sequences, **changes):
        tasks = [make_task(sequence, **changes) for sequence in sequences]
        enqueued = await self.queue.enqueue_tasks(tasks, epoch=self.epoch, partition=Partition.TRAIN)
        assert enqueued.num_accepted == len(tasks)

    async def take(self, num_groups, *, use_version=0):
        batch = await self.queue.lease_batch(
            epoch=self.epoch,
            partition=Partition.TRAIN,
            num_groups=num_groups,
            use_version=use_version,
            wait_seconds=20.0,
            request_id=uuid.uuid4().hex,
        )
        assert len(batch.groups) == num_groups
        return batch.groups

    async def commit(self, groups, *, number=1, version=0, final=False):
        results = [
            GroupResult(task_id=group.task_id, attempt=group.attempt, outcome=GroupOutcome.CONSUMED) for group in groups
        ]
        await self.queue.commit_batch(
            results,
            epoch=self.epoch,
            partition=Partition.TRAIN,
            commit_number=number,
            policy_version=version,
            final=final,
        )

    async def train_ledger(self):
        ledgers = await self.queue.get_ledger()
        return next(ledger for ledger in ledgers if ledger.partition is Partition.TRAIN)


class Fleet:
    """The services of one run; `rollouter` starts a replica."""

    def __init__(self, redis_url, model_folder, tmp_path):
        self._redis_url = redis_url
        self._model_folder = model_folder
        self._tmp_path = tmp_path
        self.run_id = RunId(f"run-{uuid.uuid4().hex[:12]}")
        self.queue_port = free_port()
        self.trainer_port = free_port()
        self.reward_address = f"127.0.0.1:{free_port()}"
        self.store = PolicyStore(self.run_id, keep_versions=2)

    def queue_service(self):
        config = QueueConfig(redis_url=self._redis_url, address=f"127.0.0.1:{self.queue_port}")
        return running(serve_queue, config)

    def reward_service(self):
        section = self.run_config().reward
        return running(serve_reward, RewardConfig(options=scorer_options(section), address=self.reward_address))

    @asynccontextmanager
    async def queue_client(self):
        async with open_channel(f"127.0.0.1:{self.queue_port}") as channel:
            yield QueueClient(channel, self.run_id)

    @asynccontextmanager
    async def trainer(self):
        async def drain():
            self.store.close()

        def register(server):
            add_policy_servicer(PolicyServicer(self.store), server)

        async with AsyncExitStack() as stack:
            address = f"127.0.0.1:{self.trainer_port}"
            await stack.enter_async_context(serving(register, address=address, on_drain=drain))
            queue = await stack.enter_async_context(self.queue_client())
            trainer = Trainer(queue, self.run_id, self.store, self._model_folder)
            await trainer.create_run()
            yield trainer

    def run_config(self, **engine):
        return RunConfig.model_validate(
            {
                "run": {"name": self.run_id, "directory": str(self._tmp_path)},
                "model": {"path": str(self._model_folder)},
                "data": {"source": "unused.jsonl"},
                "engine": {"max_slots": 8} | engine,
                "reward": {"address": self.reward_address, "scorer": "python:tests.integration.scorers:length"}
                | {"python_scorers": ["python:tests.integration.scorers:length"]},
                "queue": {"address": f"127.0.0.1:{self.queue_port}", "lease_seconds": 1.0},
                "trainer": {"address": f"127.0.0.1:{self.trainer_port}"},
                "async": {"max_staleness": 1, "partial_rollout": True},
                "telemetry": {"traces": False},
            }
        )

    def rollouter_config(self, name="r0", *, engine=None, **changes):
        config = service_config(self.run_config(**(engine or {})), replica_id=name, environment={})
        return replace(config, **{"heartbeat_seconds": 0.1} | changes)

    def rollouter(self, name="r0", **changes):
        return running(serve_rollouter, self.rollouter_config(name, **changes))


def logprobs_of(model, row):
    """Log-probability of each sampled token of a row, by one forward pass."""
    ids = torch.tensor(row.token_ids.astype("int64"))[None]
    with torch.no_grad():
        logits = model(ids).logits[0].log_softmax(-1)
    return [logits[index - 1, ids[0, index]].item() for index in range(ids.shape[1]) if row.loss_mask[index]]
