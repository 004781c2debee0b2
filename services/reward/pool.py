"""Worker processes and the bounded line in front of them.

Consumes: jobs from `submit`. Waits for: a free worker, at most as long as somebody waits for the score. Unblocked by:
an answer, the hard limit of one score (which kills the worker), or the worker's death. A killed worker is replaced;
its score fails, and no other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from services.common.errors import InternalError, OverloadedError
from services.common.types import Failure, FailureReason
from services.reward.scorers.port import Verdict
from services.reward.worker_process import WorkerLostError, WorkerProcess, WorkerTimeoutError

if TYPE_CHECKING:
    from services.common.types import ScorerInfo
    from services.reward.config import ServiceConfig

_MAX_START_TRIES = 5
_START_PAUSE_SECONDS = 0.5
_RETRY_AFTER_SECONDS = "0.5"

_log = structlog.get_logger("headrace.reward")


@dataclass(slots=True, eq=False)
class Job:
    """One score that is wanted."""

    frame: bytes
    """The request, encoded for a worker."""
    outcome: asyncio.Future[Verdict | Failure] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Verdict or failure; cancelled when nobody wants it any more or the pool stops."""
    waiters: int = 0
    """How many callers wait for it."""


class WorkerPool:
    """A fixed number of workers that take jobs in the order they came.

    Example:
        await pool.start()
        job = pool.submit(frame)      # while `pool.run()` runs beside
        verdict = await job.outcome
    """

    def __init__(self, config: ServiceConfig) -> None:
        """Start nothing yet."""
        self._config = config
        self._workers: list[WorkerProcess] = []
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._running = 0
        self._arrived = asyncio.Event()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.pid for worker in self._workers)

    @property
    def pending(self) -> int:
        """Jobs that wait or run."""
        return len(self._waiting) + self._running

    async def start(self) -> tuple[ScorerInfo, ...]:
        """Start all workers and wait until they are warm.

        Returns:
            The scorers that the workers loaded.

        Raises:
            ConfigError: a scorer cannot be loaded.
            InternalError: a worker died or was not ready in time.
        """
        results = await asyncio.gather(
            *(self._new_worker() for _ in range(self._config.workers)), return_exceptions=True
        )
        self._workers = [result for result in results if isinstance(result, WorkerProcess)]
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result
        return self._workers[0].infos

    async def run(self) -> None:
        """Serve jobs until cancelled, then kill the workers."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(len(self._workers)):
                    group.create_task(self._work(slot))
        finally:
            await self.close()

    async def close(self) -> None:
        """Kill the workers and give up what waits. May be called again."""
        while self._waiting:
            job, _ = self._waiting.popitem(last=False)
            job.outcome.cancel()
        for worker in self._workers:
            await worker.kill()

    def submit(self, frame: bytes) -> Job:
        """Put a request at the end of the line.

        Raises:
            OverloadedError: `reward.max_pending` scores wait or run already.
        """
        if self.pending >= self._config.max_pending:
            raise OverloadedError(
                f"{self.pending} of {self._config.max_pending} scores wait or run; "
                "retry after a pause, or raise reward.workers or reward.max_pending",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        job = Job(frame)
        self._waiting[job] = None
        self._arrived.set()
        return job

    def abandon(self, job: Job) -> None:
        """Take a job that nobody waits for out of the line; one that runs already goes on to its end."""
        if job in self._waiting:
            del self._waiting[job]
            job.outcome.cancel()

    async def _work(self, slot: int) -> None:
        """Serve jobs with the worker of `slot`, replacing it when it is gone."""
        while True:
            await self._ensure_alive(slot)
            job = await self._next()
            self._running += 1
            try:
                # It may have died while there was nothing to do; no score shall pay for that.
                await self._ensure_alive(slot)
                job.outcome.set_result(await self._judge(job, self._workers[slot]))
            finally:
                self._running -= 1
                job.frame = b""
                job.outcome.cancel()

    async def _next(self) -> Job:
        """Wait for the job at the head of the line."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        job, _ = self._waiting.popitem(last=False)
        return job

    async def _judge(self, job: Job, worker: WorkerProcess) -> Verdict | Failure:
        """Ask a worker; its death or silence is a failure, never a reward."""
        limit = self._config.timeout_seconds
        try:
            answer = await worker.ask(job.frame, limit_seconds=limit)
        except WorkerTimeoutError:
            _log.warning("scorer took too long, its worker was killed", pid=worker.pid, limit_seconds=limit)
            message = f"the scorer did not answer within {limit:g} s (reward.timeout_seconds)"
            return Failure(reason=FailureReason.REWARD_TIMEOUT, message=message)
        except WorkerLostError as error:
            _log.warning("scoring worker died", pid=worker.pid, error=str(error))
            return Failure(reason=FailureReason.REWARD_ERROR, message=f"the scoring worker died: {error}")
        if "error" in answer:
            return Failure(reason=FailureReason.REWARD_ERROR, message=answer["error"])
        return Verdict(reward=answer["reward"], parts=answer["parts"])

    async def _ensure_alive(self, slot: int) -> None:
        """Start a worker in place of one that is gone.

        Raises:
            InternalError: it failed again and again; the service ends and its supervisor starts it afresh.
        """
        if self._workers[slot].alive:
            return
        await self._workers[slot].kill()
        for _ in range(_MAX_START_TRIES):
            try:
                self._workers[slot] = await self._new_worker()
            except InternalError as error:
                _log.warning("a scoring worker could not be replaced", error=error.message)
                await asyncio.sleep(_START_PAUSE_SECONDS)
            else:
                return
        raise InternalError(f"no scoring worker could be started in {_MAX_START_TRIES} tries; see the log above")

    async def _new_worker(self) -> WorkerProcess:
        """Start a worker that knows every scorer of the configuration."""
        options = self._config.options
        return await WorkerProcess.start(
            options=options,
            preload=tuple(dict.fromkeys((options.scorer, *options.python_scorers))),
            timeout_seconds=self._config.timeout_seconds,
            start_timeout_seconds=self._config.start_timeout_seconds,
        )
