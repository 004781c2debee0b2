"""Two ways to reach the queue, behind the one client that trainers and rollouters use.

`InProcess` calls the servicer directly: fast. `ServiceProcess` is a real process on a real port, which dies by SIGKILL.
Both can be cut in the middle of a call, like a service that dies before its answer is out.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.clients.queue import QueueClient
from services.common.rpc.channel import open_channel
from services.common.rpc.health import wait_healthy
from services.queue.config import ServiceConfig
from services.queue.server import serve
from services.queue.servicer import QueueServicer, add_queue_servicer
from services.queue.store import QueueStore
from tests.redis_server import find_server, free_port, wait_for

if TYPE_CHECKING:
    from pathlib import Path

_START_SECONDS = 20.0
_SETTLE_SECONDS = 0.003
# Starts services as forks of a process that has imported everything, in a fraction of the time of a new interpreter.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.unit.queue.ports"])


class LocalChannel:
    """What a client's stub needs of a channel and a service of a server, without a network: only the bytes are real."""

    def add_generic_rpc_handlers(self, handlers):
        (self._handlers,) = handlers

    def unary_unary(self, path, request_serializer, response_deserializer, **_):
        handler = self._handlers.service(Call(path))

        async def call(request, timeout=None):
            asked = handler.request_deserializer(request_serializer(request))
            async with asyncio.timeout(timeout):
                answer = await handler.unary_unary(asked, None)
            return response_deserializer(handler.response_serializer(answer))

        return call


@dataclass
class Call:
    method: str
    """What a handler needs to know of a call."""


class InProcess:
    """The servicer on a store, in this process."""

    def __init__(self, redis_url, run_id) -> None:
        self._redis_url = redis_url
        self._run_id = run_id

    async def open(self):
        self._store = QueueStore(self._redis_url)
        channel = LocalChannel()
        add_queue_servicer(QueueServicer(self._store), channel)
        self.client = QueueClient(channel, self._run_id)

    async def crash(self, call=None):
        """End the service at once, whatever it is doing; another one takes its place."""
        if call is not None:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await self.close()
        await asyncio.sleep(_SETTLE_SECONDS)
        await self.open()

    async def close(self):
        await self._store.close()


class ServiceProcess:
    """The service in a process of its own."""

    def __init__(self, redis_url, run_id) -> None:
        self._redis_url = redis_url
        self._run_id = run_id

    async def open(self):
        address = f"127.0.0.1:{free_port()}"
        self._process = _PROCESSES.Process(target=_serve, args=(self._redis_url, address), daemon=True)
        self._process.start()
        await wait_healthy(address, _START_SECONDS)
        self._channel = open_channel(address)
        self.client = QueueClient(self._channel, self._run_id)

    async def crash(self, call=None):
        """Kill the process, whatever it is doing; another one takes its place."""
        self._process.kill()
        if call is not None:
            await asyncio.gather(call, return_exceptions=True)
        await self.close()
        await self.open()

    async def close(self):
        await self._channel.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _serve(redis_url, address):
    asyncio.run(serve(ServiceConfig(redis_url=redis_url, address=address)))


async def answer_after_cut(port, call, *, seconds):
    """Make a call, have the service die after some time, and make the call again, as its client would."""
    first = asyncio.ensure_future(call(port.client))
    await asyncio.wait({first}, timeout=seconds)
    await port.crash(first)
    return await call(port.client)


class PersistentRedis:
    """A Redis on a machine that may lose its power. It never syncs its log, so all of it that is young may be lost.

    With `everysec` the server now and then answers before it has written to its log, and where the log stands after a
    call would say nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._start()

    def _start(self):
        command = [find_server(), "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "no", "--loglevel", "warning"]
        command += ["--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self._port, self._process)

    @property
    def _log(self) -> Path:
        return next((self._folder / "appendonlydir").glob("*.incr.aof"))

    @property
    def written_bytes(self) -> int:
        """How far the log has come."""
        return self._log.stat().st_size

    def lose_power(self, *, keep_bytes: int):
        """Die, lose all of the log behind a byte (which may be in the middle of anything), and start again."""
        self.kill()
        os.truncate(self._log, keep_bytes)
        self._start()

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
