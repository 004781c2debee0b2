"""A TCP relay whose target can be changed, as a cluster's service address goes on to whichever process is in charge."""

from __future__ import annotations

import asyncio
import threading

_READ_BYTES = 65536


class Relay:
    """Listens on a loopback port for the length of a block and passes connections on.

    Example:
        with Relay(port_of_the_first) as relay:
            relay.turn(port_of_the_second)
    """

    def __init__(self, target: int) -> None:
        """Pass connections on to a loopback port; nothing listens yet."""
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Relay:
        """Listen."""
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def turn(self, target: int) -> None:
        """Cut every connection, and pass those to come on to another port."""
        self._target = target
        self._call(self._cut())

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _cut(self) -> None:
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        writers = [writer]
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(there_writer)
            ways = asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
            await ways
        except (OSError, asyncio.CancelledError):
            # Whoever connects sees a closed connection, as from a process that is gone.
            pass
        finally:
            for one in writers:
                one.transport.abort()
            self._passing.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until the end, which ends the other way too."""
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError
