"""The trainer as a service: status, stop and weights over gRPC beside a real queue, and its process's exit status."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from services.common.clients.policy import PolicyClient
from services.common.clients.queue import QueueClient
from services.common.clients.trainer import TrainerClient
from services.common.config import dump_config
from services.common.rpc.channel import open_channel
from services.common.types import RunId
from services.queue.config import ServiceConfig as QueueConfig
from services.queue.server import serve as serve_queue
from services.trainer.config import service_config
from services.trainer.server import serve
from tests.integration.serving import eventually
from tests.redis_server import running_server
from tests.unit.trainer.fakes import make_config


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def queue_address(redis_url):
    bound, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    service = asyncio.ensure_future(
        serve_queue(QueueConfig(redis_url=redis_url), on_bound=bound.set_result, stop=stop, handle_signals=False)
    )
    yield await bound
    stop.set()
    await service


def config_for(tmp_path, queue_address, name):
    (tmp_path / "data.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    return make_config(
        tmp_path,
        run={"name": name},
        model={"warm_start": {"max_steps": 0}, "num_layers": 1},
        data={"source": str(tmp_path / "data.jsonl")},
        queue={"address": queue_address},
        trainer={"stall_seconds": 1.5, "device": "cpu"},
        telemetry={"traces": False},
    )


@asynccontextmanager
async def running_trainer(config):
    bound = asyncio.get_running_loop().create_future()
    service = asyncio.ensure_future(
        serve(
            service_config(config, environment={}),
            announce=lambda _: None,
            on_bound=bound.set_result,
            handle_signals=False,
        )
    )
    channel = open_channel(await asyncio.wait_for(bound, 30))
    try:
        yield service, channel
    finally:
        await channel.close()
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


async def test_it_serves_its_first_version_reports_itself_and_stops_when_asked(tmp_path, queue_address):
    config = config_for(tmp_path, queue_address, "served")
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"stall_seconds": 30.0})})
    async with running_trainer(config) as (service, channel):
        trainer = TrainerClient(channel)
        policy = PolicyClient(channel, RunId("served"))
        queue_channel = open_channel(queue_address)
        queue = QueueClient(queue_channel, RunId("served"))
        async with asyncio.timeout(20):
            while (report := await trainer.get_status()).state != "waiting":
                await asyncio.sleep(0.05)
        assert (report.run_id, report.step, report.total_steps, report.policy_version) == ("served", 0, 6, 0)
        manifest = await policy.get_manifest()
        assert (manifest.version, manifest.epoch) == (0, report.epoch)
        stats = await queue.get_stats()
        assert stats.policy_version == 0
        async with asyncio.timeout(10):
            while not (replicas := (await queue.get_stats()).replicas):
                await asyncio.sleep(0.05)
        assert (replicas[0].status.service, replicas[0].status.metrics["total_steps"]) == ("trainer", 6.0)

        await trainer.stop()

        await eventually(service.done)
        assert service.exception() is None
        assert (await queue.get_stats()).replicas[0].status.state == "stopped"
        await queue_channel.close()


def run_process(config, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(dump_config(config))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "services.trainer", "--config", str(path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )


@pytest.mark.timeout(120)
async def test_a_trainer_that_gets_nothing_ends_with_status_3_and_one_sentence(tmp_path, queue_address):
    config = config_for(tmp_path, queue_address, "stalled")

    done = await asyncio.to_thread(run_process, config, tmp_path)

    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace trainer: no group became ready for 1.5 s: 0 of 2 groups ready, 8 members wait")
    assert "none is heard of, start one" in last
    assert json.loads((tmp_path / "stalled" / "version.json").read_text())["version"] == 0


@pytest.mark.timeout(120)
async def test_wrong_data_ends_with_status_2_and_one_sentence(tmp_path, queue_address):
    config = config_for(tmp_path, queue_address, "wrong")
    (tmp_path / "data.jsonl").write_text("{broken\n")

    done = await asyncio.to_thread(run_process, config, tmp_path)

    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"headrace trainer: {tmp_path}/data.jsonl line 1: is not JSON")
