"""Start, serve, drain and stop of a service, in this process and in one of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from services.common.errors import ConfigError, FencedError, HeadraceError, InternalError, UnavailableError
from services.common.rpc.channel import open_channel
from services.common.rpc.health import check_health, wait_healthy
from services.common.rpc.retry import retrying
from services.common.telemetry.file_exporter import read_spans
from tests.integration.rpc_service import register, run_service, running, stream, unary


def start(scenario, folder, *arguments, **environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.rpc_service", scenario, str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    return process, process.stdout.readline().strip()


def finish(process, timeout=10):
    _, stderr = process.communicate(timeout=timeout)
    return process.returncode, stderr


async def test_a_started_service_is_healthy_and_a_stopped_one_is_not():
    async with running() as address:
        await wait_healthy(address, 5.0)
        assert await check_health(address) == "SERVING"
    with pytest.raises(UnavailableError, match=f"{address} is not healthy after 0.3 s"):
        await wait_healthy(address, 0.3)


async def test_health_says_serving_only_after_the_start_is_complete():
    seen = []

    async def look_first(bound):
        seen.append(await check_health(bound))

    stop = asyncio.Event()
    stop.set()
    await run_service(
        "test", address="127.0.0.1:0", register=register, on_started=look_first, stop=stop, handle_signals=False
    )
    assert seen == ["NOT_SERVING"]


async def test_a_port_in_use_is_a_config_error_that_says_so():
    async with running() as address:
        with pytest.raises(ConfigError, match=f"cannot listen on {address}: address already in use"):
            await run_service("second", address=address, register=register, handle_signals=False)


async def test_a_malformed_address_is_a_config_error():
    with pytest.raises(ConfigError, match="write it as host:port"):
        await run_service("test", address="localhost", register=register, handle_signals=False)


async def test_a_drain_lets_running_requests_end_and_refuses_new_ones():
    async def ask(channel, method, argument, after):
        await asyncio.sleep(after)
        return await unary(channel, method)(argument)

    async with asyncio.TaskGroup() as group, running() as address:
        old, new = open_channel(address), open_channel(address)
        slow = group.create_task(ask(old, "Slow", b"0.6", 0.0))
        late = group.create_task(_error_of(ask(new, "Echo", b"", 0.3)))
        await asyncio.sleep(0.1)
    assert slow.result() == b"done"
    assert isinstance(late.result(), UnavailableError)
    await old.close(None)
    await new.close(None)


async def test_a_health_watch_does_not_hold_up_a_drain():
    async with running(grace_seconds=20.0) as address:
        channel = open_channel(address)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        states = aiter(watch)
        assert (await anext(states)).status == health_pb2.HealthCheckResponse.SERVING
        began = time.monotonic()
    # Far below the grace time, far above what a busy machine adds.
    assert time.monotonic() - began < 10
    assert (await anext(states)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await channel.close(None)


async def test_an_endless_stream_is_cut_when_the_grace_time_is_over():
    async with running(grace_seconds=0.3) as address:
        channel = open_channel(address)
        ticks = aiter(stream(channel, "Forever")(b"", timeout=30))
        await anext(ticks)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    with pytest.raises(UnavailableError):
        async for _ in ticks:
            pass
    await channel.close(None)


@pytest.mark.parametrize(
    ("error", "num_tracebacks"),
    [(FencedError("epoch 1 was replaced"), 0), (InternalError("epoch 1 failed"), 1), (ValueError("epoch 1 is odd"), 1)],
)
async def test_a_crashed_background_task_leaves_as_its_own_class(error, num_tracebacks):
    async def crash():
        raise error

    with capture_logs() as logs, pytest.raises(type(error), match="epoch 1"):
        await run_service("test", address="127.0.0.1:0", register=register, background=[crash], handle_signals=False)
    # What has a name of its own is told in a sentence by whoever started the service.
    assert sum("exc_info" in entry for entry in logs) == num_tracebacks


async def test_a_drain_that_fails_leaves_as_its_own_class():
    async def drain():
        raise FencedError("nothing can be returned any more")

    stop = asyncio.Event()
    stop.set()
    with pytest.raises(FencedError, match="nothing can be returned"):
        await run_service(
            "test", address="127.0.0.1:0", register=register, on_drain=drain, stop=stop, handle_signals=False
        )


async def test_a_client_outlives_the_restart_of_its_peer():
    async with running() as address, open_channel(address) as channel:
        assert await unary(channel, "Echo")(b"1") == b"1"
    async with asyncio.TaskGroup() as group, open_channel(address) as channel:

        async def ask():
            return await retrying(lambda: unary(channel, "Echo")(b"2", timeout=1), deadline_seconds=20)

        answer = group.create_task(ask())
        await asyncio.sleep(0.5)
        assert not answer.done()
        async with running(address=address):
            assert await answer == b"2"


def test_sigterm_drains_cancels_the_rest_and_flushes_spans(tmp_path):
    process, address = start("drain", tmp_path)
    assert address.startswith("127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    code, stderr = finish(process)
    assert code == 0, stderr
    assert (tmp_path / "drain").read_text() == "drained"
    assert (tmp_path / "background").read_text() == "cancelled"
    assert [span["name"] for _, span in read_spans(tmp_path / "traces.jsonl")] == ["train.step"]


def test_a_drain_that_hangs_ends_with_the_grace_time(tmp_path):
    process, _ = start("stuck", tmp_path, "0.3")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, stderr = finish(process)
    assert code == 0, stderr
    assert time.monotonic() - began < 15
    assert (tmp_path / "drain").read_text() == "begun"


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    process, _ = start("stuck", tmp_path, "30")
    process.send_signal(signal.SIGTERM)
    while not (tmp_path / "drain").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    code, _ = finish(process)
    assert code == 128 + signal.SIGTERM


def test_a_crashed_background_task_ends_the_process_loudly(tmp_path):
    process, _ = start("crash", tmp_path)
    code, stderr = finish(process)
    assert code == 1
    assert "epoch 1 was replaced by epoch 2" in stderr
    assert list(read_spans(tmp_path / "traces.jsonl"))


def test_a_service_stops_when_its_launcher_is_gone(tmp_path):
    launcher = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'tests.integration.rpc_service', 'plain', sys.argv[1]],"
        " stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,"
        " env={**os.environ, 'HEADRACE_PARENT_PID': str(os.getpid())})\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", launcher, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _error_of(call):
    try:
        await call
    except HeadraceError as error:
        return error
    return None
