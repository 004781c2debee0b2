"""The parent's side of one worker process: start, ask, kill. Whatever ends, no process stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from services.common.errors import ConfigError, InternalError
from services.common.types import ScorerInfo
from services.reward.frames import encode_frame, receive_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.scoring import ScorerOptions

_KILL_TIMEOUT_SECONDS = 5.0


class WorkerLostError(Exception):
    """The worker died, or answered nonsense and was killed."""


class WorkerTimeoutError(Exception):
    """The worker did not answer in time and was killed."""


class WorkerProcess:
    """One process that runs scorers, in a process group of its own so that what it starts dies with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a started process; `start` is the way to get one."""
        self._process = process
        self._killed = False
        self.infos: tuple[ScorerInfo, ...] = ()
        """The scorers that it loaded at its start."""

    @classmethod
    async def start(
        cls, *, options: ScorerOptions, preload: Sequence[str], timeout_seconds: float, start_timeout_seconds: float
    ) -> WorkerProcess:
        """Start a worker and wait until it has loaded the scorers in `preload`.

        Raises:
            ConfigError: a scorer cannot be loaded; the message is the worker's.
            InternalError: the worker died or was not ready in time.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.reward.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            start_new_session=True,
        )
        worker = cls(process)
        hello = {"options": asdict(options), "preload": list(preload), "timeout_seconds": timeout_seconds}
        try:
            answer = await worker.ask(encode_frame(hello), limit_seconds=start_timeout_seconds)
        except (WorkerLostError, WorkerTimeoutError) as error:
            raise InternalError(f"a scoring worker did not start: {error}") from error
        if "failed" in answer:
            await worker.kill()
            raise ConfigError(f"a scorer cannot be loaded: {answer['failed']}")
        worker.infos = tuple(
            ScorerInfo(name=name, version=version, description=description)
            for name, version, description in answer["ready"]
        )
        return worker

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._killed and self._process.returncode is None

    async def ask(self, frame: bytes, *, limit_seconds: float) -> dict[str, Any]:
        """Send a frame and wait for the answer; a worker that fails to give one is killed.

        Raises:
            WorkerTimeoutError: it took longer than `limit_seconds`.
            WorkerLostError: it died, or answered something else.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(limit_seconds):
                stdin.write(frame)
                await stdin.drain()
                return await receive_frame(stdout)
        except TimeoutError as error:
            await self.kill()
            raise WorkerTimeoutError(f"no answer within {limit_seconds:g} s") from error
        except (asyncio.IncompleteReadError, ConnectionError, InternalError) as error:
            await self.kill()
            code = self._process.returncode
            raise WorkerLostError(f"the process ended with exit code {code}") from error
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def kill(self) -> None:
        """End the process and everything it started, and wait until it is gone. May be called again."""
        if self._killed:
            return
        self._killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
            await self._process.wait()
