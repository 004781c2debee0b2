"""A run whose trainer is killed at bad instants ends with the bits of a plain loop that nothing happened to.

Weights, optimiser state, random generators, learning rate, dataset order over two epoch boundaries, and the metrics of
every step. The trainer is a real process and dies by SIGKILL; queue, reward service and rollouter live on.
"""

import asyncio
import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file

from services.common.config import dump_config
from services.queue.config import ServiceConfig as QueueConfig
from services.queue.server import serve as serve_queue
from services.reward.config import service_config as reward_config
from services.reward.server import serve as serve_reward
from services.rollouter.config import service_config as rollouter_config
from services.rollouter.server import serve as serve_rollouter
from services.trainer.checkpoint import CheckpointStore
from services.trainer.dataset import load_data
from services.trainer.model_source import resolve_model
from services.trainer.run_directory import RunDirectory
from tests.integration.test_sync_equality import GROUPS, make_config, plain_loop, service, started
from tests.redis_server import free_port, running_server

STEPS, ROWS = 10, 13
PROCESS_SECONDS = 180


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


def config_of(folder, name, *, every=1, **addresses):
    config = make_config(folder, name, size=ROWS, **addresses)
    changes = {
        "total_steps": STEPS,
        "checkpoint_every": every,
        "schedule": "cosine",
        "warmup_steps": 3,
        "keep_checkpoints": STEPS,
    }
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=changes)})


async def run_trainer(path, *words):
    """Run the trainer's process to its end; returns its exit status and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *words,
        "--config",
        str(path),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), PROCESS_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode()


async def run_with_deaths(folder, redis_url, *, name, every, moments):
    """Train with a trainer that dies at each moment and is started again."""
    trainer = f"127.0.0.1:{free_port()}"
    async with (
        service(serve_queue, QueueConfig(redis_url=redis_url)) as queue,
        service(serve_reward, reward_config(config_of(folder, name).reward)) as reward,
    ):
        config = config_of(folder, name, every=every, queue=queue, reward=reward, trainer=trainer)
        model = resolve_model(config, load_data(config, folder=folder), progress=lambda _: None)
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model), "build": ""})})
        path = folder / f"{name}.toml"
        path.write_text(dump_config(config))
        async with asyncio.TaskGroup() as group:
            await started(group, serve_rollouter, rollouter_config(config, replica_id="r0", environment={}))
            for moment in moments:
                code, out = await run_trainer(path, "tests.integration.dying_trainer", moment)
                assert code == -9, f"at {moment}: {out}"
            code, out = await run_trainer(path, "services.trainer")
            assert code == 0, out
    return config


@pytest.fixture(scope="module")
def plain(folder):
    """State and metrics of the plain loop."""
    backend, metrics = asyncio.run(plain_loop(config_of(folder, "plain"), folder))
    assert STEPS * GROUPS > 2 * ROWS, "the run crosses an epoch's end twice"
    return backend.state(), metrics


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("every", "moments"),
    [(1, ["written-2", "visible-5", "writing-7"]), (2, ["step-5", "visible-6", "writing-8"])],
    ids=["every-step", "every-second-step"],
)
async def test_a_run_whose_trainer_is_killed_ends_with_the_bits_of_a_plain_loop(
    folder, redis_url, plain, every, moments
):
    expected, metrics = plain

    config = await run_with_deaths(folder, redis_url, name=f"every-{every}", every=every, moments=moments)

    directory = RunDirectory.of(config)
    found = CheckpointStore(directory.checkpoints, keep=STEPS).newest()
    assert found.run.step == STEPS
    assert found.backend.numbers == expected.numbers
    assert found.backend.tensors.keys() == expected.tensors.keys()
    for name in expected.tensors.keys() - {"rng.cpu"}:
        assert torch.equal(found.backend.tensors[name], expected.tensors[name]), f"{name} differs"
    # No step draws, and each process begins with a generator of its own: the first one's goes on through all of them.
    generators = [load_file(path)["rng.cpu"] for path in directory.checkpoints.glob("step-*/tensors.safetensors")]
    assert len(generators) >= STEPS // every
    assert all(torch.equal(generator, generators[0]) for generator in generators)
    steps = directory.steps()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert len({step["epoch"] for step in steps}) > 1, "no step was done by a second trainer"
    for step, wanted in zip(steps, metrics, strict=True):
        assert {name: step[name] for name in wanted.as_dict()} == wanted.as_dict()
    ledger = json.loads((directory.root / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    assert ledger["train"]["tasks"]["consumed"] == STEPS * GROUPS
