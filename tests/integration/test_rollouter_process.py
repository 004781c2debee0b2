"""The rollouter as a process: exit statuses, signals, what it imports."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.config import dump_config
from services.common.types import Partition, SamplingParams
from services.trainer.tiny_model import TinyModelShape, build_tiny_model
from tests.integration.rollouter_fleet import Fleet
from tests.redis_server import running_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fleet(tmp_path_factory, tmp_path):
    folder = tmp_path_factory.mktemp("model")
    shape = TinyModelShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, max_context_tokens=256)
    build_tiny_model(folder, corpus=["What is 1 + 2?"], seed=0, shape=shape)
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield Fleet(url, folder, tmp_path)


async def start(fleet, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(dump_config(fleet.run_config()))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.rollouter", "--config", str(path)),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.DEVNULL,
    )


async def test_sigterm_gives_back_what_is_leased_and_ends_with_0(fleet, tmp_path):
    async with fleet.queue_service(), fleet.reward_service(), fleet.trainer() as trainer:
        await trainer.publish(0)
        await trainer.feed(range(8), sampling=SamplingParams(max_new_tokens=200), group_size=8)
        process = await start(fleet, tmp_path)
        async with asyncio.timeout(40):
            while (await trainer.train_ledger()).trajectories.in_flight == 0:
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0
        ledger = await trainer.train_ledger()
    assert ledger.partition is Partition.TRAIN
    assert (ledger.trajectories.in_flight, ledger.lost) == (0, 0)


async def test_the_end_of_the_run_ends_the_process_with_0(fleet, tmp_path):
    async with fleet.queue_service(), fleet.reward_service(), fleet.trainer() as trainer:
        process = await start(fleet, tmp_path)
        await trainer.publish(0)
        await trainer.feed(range(1), sampling=SamplingParams(max_new_tokens=4))
        await trainer.commit(await trainer.take(1), final=True)
        assert await asyncio.wait_for(process.wait(), 20) == 0


def test_a_wrong_config_is_one_sentence_and_status_2(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[model]\npath = "/no/such/folder"\n[data]\nsource = "d.jsonl"\n[telemetry]\ntraces = false\n')
    command = [sys.executable, "-m", "services.rollouter", "--config", str(path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == 2
    sentence = ended.stderr.splitlines()[-1]
    assert sentence.startswith("headrace rollouter: model.path '/no/such/folder' is")


def test_a_replica_without_weights_does_not_load_torch():
    code = (
        "import sys, services.rollouter.server, services.rollouter.__main__; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=50).returncode == 0
