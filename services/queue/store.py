"""The queue's store: all state in Redis, every change of state one atomic script.

    runs           rules, epochs, versions, heartbeats, reconciliation
    tasks          feeding and the leases of members
    trajectories   puts
    batches        leases of groups, commits
    accounts       ledger, depths and dead letters
    retirement     which runs there are, and their deletion

It knows no gRPC, no policies and no meaning of tokens; tasks and trajectories are bytes. Several stores may work on one
server at the same time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError, NotFoundError, StateFormatError, UnavailableError
from services.common.rpc.retry import Backoff
from services.queue.accounts import Accounts
from services.queue.batches import Batches
from services.queue.connection import RedisConnection
from services.queue.kept import Kept
from services.queue.quotas import Quotas
from services.queue.retirement import Retirement
from services.queue.runs import Runs
from services.queue.tasks import Tasks
from services.queue.trajectories import Trajectories
from services.queue.waiting import Waiting

if TYPE_CHECKING:
    from services.common.types import RunId

_SWEEP_SECONDS = 0.5
_RETIRE_SECONDS = 10.0
_MAX_KEPT_PAYLOAD_BYTES = 16 * 1024 * 1024

_log = structlog.get_logger("headrace.queue")


class QueueStore:
    """Tasks, leases, trajectories, groups and the ledger of all runs on one server.

    Example:
        store = QueueStore("redis://127.0.0.1:6379/0")
        await store.start()
        run = await store.runs.create(RunId("demo"), settings, owner_id="trainer-1")
    """

    def __init__(self, redis_url: str, quotas: Quotas | None = None) -> None:
        """Name the server; nothing is connected yet.

        Args:
            redis_url: the server.
            quotas: what a run may take of it; None sets no bound.

        Raises:
            ConfigError: the URL cannot be read.
        """
        self._redis = RedisConnection(redis_url)
        self._waiting = Waiting()
        payloads = Kept(self._redis, max_bytes=_MAX_KEPT_PAYLOAD_BYTES)
        quotas = quotas or Quotas()
        self.runs = Runs(self._redis, self._waiting, quotas)
        self.retirement = Retirement(self._redis, self._waiting, quotas)
        self.tasks = Tasks(self._redis, self._waiting)
        self.trajectories = Trajectories(self._redis, self._waiting, payloads)
        self.batches = Batches(self._redis, self._waiting, runs=self.runs, payloads=payloads)
        self.accounts = Accounts(self._redis)

    async def start(self) -> None:
        """Make sure that the server can be used.

        Raises:
            UnavailableError: it does not answer.
            ConfigError: it refuses the user or password, or may evict keys.
        """
        await self._redis.check()

    async def wait_for_server(self, *, patience_seconds: float, stop: asyncio.Event) -> None:
        """Wait until the server can be used, or `stop` is set.

        Args:
            patience_seconds: longest wait.
            stop: ends the wait at once.

        Raises:
            ExceptionGroup: of what `start` raises, once the time is over or when waiting cannot help.
        """
        async with asyncio.TaskGroup() as group:
            connecting = group.create_task(self._start_patiently(patience_seconds))

            async def end_early() -> None:
                await stop.wait()
                connecting.cancel()

            ending = group.create_task(end_early())
            await asyncio.wait({connecting})
            ending.cancel()

    async def _start_patiently(self, patience_seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + patience_seconds
        backoff = Backoff()
        tries = 0
        while True:
            try:
                await self.start()
            except UnavailableError as error:
                tries += 1
                pause = backoff.pause(tries)
                if clock() + pause > deadline:
                    raise
                if tries == 1:
                    _log.warning("waiting for Redis", error=error.message, patience_seconds=patience_seconds)
                await asyncio.sleep(pause)
            else:
                return

    async def sweep_forever(self) -> None:
        """Lapse overdue leases also while nobody asks for anything."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                for run_id in await self.runs.swept_runs():
                    await self._sweep(run_id)
            except HeadraceError as error:
                # Nothing is lost: the next sweep, or any lease call, does the same.
                _log.warning("sweep failed", error=error.message)

    async def retire_forever(self) -> None:
        """Delete runs that have finished long ago, and finish deletions that were cut short."""
        while True:
            await asyncio.sleep(_RETIRE_SECONDS)
            try:
                await self.retirement.retire()
            except HeadraceError as error:
                # The next time begins where this one ended.
                _log.warning("deletion failed", error=error.message)

    async def _sweep(self, run_id: RunId) -> None:
        try:
            _, alive = await self.runs.sweep(run_id)
        except NotFoundError:
            alive = False
        except StateFormatError:
            # A queue service that reads its format sweeps it.
            return
        if not alive:
            await self.runs.forget(run_id)

    async def drain(self) -> None:
        """End all waits now."""
        self._waiting.close()

    async def close(self) -> None:
        """Close every connection."""
        self._waiting.close()
        await self._redis.close()
