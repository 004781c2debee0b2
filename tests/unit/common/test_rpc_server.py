import asyncio
import random

import grpc
import pytest

from services.common.errors import ConfigError
from services.common.rpc.server import bind, run_service


async def test_port_zero_takes_a_free_port():
    server = grpc.aio.server()
    host, _, port = bind(server, "127.0.0.1:0").rpartition(":")
    await server.stop(None)
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.parametrize("address", ["localhost", ":", "127.0.0.1:http"])
async def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match="write it as host:port"):
        bind(grpc.aio.server(), address)


async def test_a_foreign_host_is_refused_with_the_systems_reason():
    with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1:0: cannot assign requested address"):
        bind(grpc.aio.server(), "192.0.2.1:0")


async def test_a_background_task_that_returns_does_not_end_the_service():
    stop = asyncio.Event()
    ran = []

    async def short():
        ran.append("short")

    async def long():
        await asyncio.sleep(0.05)
        ran.append("long")
        stop.set()

    await run_service(
        "test",
        address="127.0.0.1:0",
        register=lambda _server: None,
        background=[short, long],
        stop=stop,
        handle_signals=False,
    )
    assert ran == ["short", "long"]


async def test_a_retry_or_a_service_does_not_move_the_seeded_generator():
    random.seed(7)
    expected = random.Random(7).random()
    stop = asyncio.Event()
    stop.set()
    await run_service("test", address="127.0.0.1:0", register=lambda _server: None, stop=stop, handle_signals=False)
    assert random.random() == expected
