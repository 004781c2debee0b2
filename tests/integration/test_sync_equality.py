"""`max_staleness = 0` is synchronous training: real services give the weights of a plain loop, bit for bit.

The plain loop is written out below: one process, one engine, one backend, no queue. The run goes through a real Valkey,
the queue, the reward service, the trainer and one or two rollouters.
"""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.common.config import RunConfig
from services.common.seeds import sample_seed
from services.queue.config import ServiceConfig as QueueConfig
from services.queue.server import serve as serve_queue
from services.reward.config import service_config as reward_config
from services.reward.server import serve as serve_reward
from services.rollouter.agents.single_turn import completion_row
from services.rollouter.config import service_config as rollouter_config
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.transformers_engine import TransformersEngine
from services.rollouter.server import serve as serve_rollouter
from services.trainer.advantage import grpo_advantages
from services.trainer.backend.local import LocalBackend
from services.trainer.backend.port import StepMetrics, TrainingRow
from services.trainer.config import service_config as trainer_config
from services.trainer.dataset import load_data
from services.trainer.model_source import resolve_model
from services.trainer.server import learner_settings
from services.trainer.server import serve as serve_trainer
from services.trainer.tasks import training_tasks
from tests.redis_server import free_port, running_server

STEPS, GROUPS, MEMBERS = 5, 3, 4


def score(completion, **_):
    """A reward with signal even for a model that babbles."""
    return (sum(completion.encode()) % 7) / 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


def make_config(folder: Path, name: str, *, size: int = 40, **addresses: str) -> RunConfig:
    sections = {key: {"address": address} for key, address in addresses.items()}
    scorer = "python:tests.integration.test_sync_equality:score"
    return RunConfig.model_validate(
        {
            "run": {"name": name, "directory": str(folder), "seed": 5},
            "model": {
                "build": "tiny_qwen3",
                "hidden_size": 32,
                "num_layers": 2,
                "max_context": 128,
                "warm_start": {"max_steps": 0},
            },
            "data": {
                "source": "reasoning_gym:chain_sum",
                "size": size,
                "args": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            },
            "rollout": {"group_size": MEMBERS, "max_new_tokens": 8},
            "engine": {"deterministic": True, "dtype": "float32", "device": "cpu", "max_slots": 8},
            "reward": {"scorer": scorer, **sections.get("reward", {})},
            "queue": sections.get("queue", {}),
            "async": {"mode": "sync"},
            "trainer": {
                "total_steps": STEPS,
                "groups_per_step": GROUPS,
                "learning_rate": 1e-3,
                "device": "cpu",
                "checkpoint_every": 2,
                "stall_seconds": 40.0,
                **sections.get("trainer", {}),
            },
            "telemetry": {"traces": False},
        }
    )


async def plain_loop(config: RunConfig, folder: Path) -> tuple[LocalBackend, list[StepMetrics]]:
    """Generate, score, step, as often as the configuration says; returns what learnt, and the metrics of each step."""
    data = load_data(config, folder=folder)
    tasks = training_tasks(config, data)
    model = resolve_model(config, data, progress=lambda _: None)
    backend = await asyncio.to_thread(LocalBackend, model, learner_settings(config))
    engine = TransformersEngine(config.engine, config.model.model_copy(update={"path": str(model), "build": ""}))
    await engine.start()
    metrics = []
    for step in range(config.trainer.total_steps):
        # Weights always reach an engine by adoption; those of a file may lie otherwise in memory and round otherwise.
        await engine.adopt(step, "", backend.snapshot().tensors, keep_running=False)
        rows = []
        for sequence in range(step * GROUPS, (step + 1) * GROUPS):
            task = tasks.task(sequence)
            group = []
            for member in range(MEMBERS):
                request = GenerationRequest(
                    request_id=f"{sequence}/{member}",
                    prompt_ids=engine.render(task.messages),
                    sampling=task.sampling,
                    seed=sample_seed(task.seed, sequence, member),
                )
                generation = await engine.generate(request)
                group.append((completion_row(request.prompt_ids, generation), score(generation.text)))
            advantages = grpo_advantages([reward for _, reward in group], norm_by_std=True)
            rows += [
                TrainingRow(row=row, advantage=advantage) for (row, _), advantage in zip(group, advantages, strict=True)
            ]
        metrics.append(await asyncio.to_thread(backend.step, rows))
    await engine.stop()
    return backend, metrics


async def started(group, serve, *arguments, **options) -> str:
    """Start a service in `group` and wait until it listens; returns its address."""
    bound = asyncio.get_running_loop().create_future()
    group.create_task(serve(*arguments, on_bound=bound.set_result, handle_signals=False, **options))
    return await asyncio.wait_for(bound, 90)


@asynccontextmanager
async def service(serve, *arguments):
    """Run a service inside the block; yields its address."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        try:
            yield await started(group, serve, *arguments, stop=stop)
        finally:
            stop.set()


async def run_services(folder: Path, redis_url: str, *, name: str, replicas: int) -> RunConfig:
    """Train through real services until the run is done."""
    trainer = f"127.0.0.1:{free_port()}"
    reward_only = make_config(folder, name)
    async with (
        service(serve_queue, QueueConfig(redis_url=redis_url)) as queue,
        service(serve_reward, reward_config(reward_only.reward)) as reward,
    ):
        config = make_config(folder, name, queue=queue, reward=reward, trainer=trainer)
        model = resolve_model(config, load_data(config, folder=folder), progress=lambda _: None)
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model), "build": ""})})
        async with asyncio.TaskGroup() as group:
            settings = trainer_config(config, environment={})
            await started(group, serve_trainer, settings, announce=lambda _: None)
            for index in range(replicas):
                # One after the other: transformers cannot load two models at once in one process.
                await started(group, serve_rollouter, rollouter_config(config, replica_id=f"r{index}", environment={}))
    return config


@pytest.mark.timeout(120)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_synchronous_mode_gives_the_weights_of_a_plain_loop_bit_for_bit(folder, redis_url, replicas):
    config = await run_services(folder, redis_url, name=f"sync-{replicas}", replicas=replicas)
    trained = load_file(folder / config.run.name / "final" / "model.safetensors")

    backend, _ = await plain_loop(make_config(folder, "plain"), folder)
    plain = backend.snapshot().tensors

    start = load_file(Path(config.model.path) / "model.safetensors")
    assert not all(torch.equal(start[name], plain[name]) for name in plain), "the loop learnt nothing"
    assert trained.keys() == plain.keys()
    for name, tensor in plain.items():
        assert torch.equal(trained[name], tensor), f"{name} differs"
