"""One child process: started so that it cannot outlive the launcher, its output captured line by line.

Every child leads a session of its own, so a Ctrl-C in the terminal reaches only the launcher, which then drains the
services in order; and a signal to the whole session reaches helpers that a service started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

REDIS_URL_VARIABLE = "HEADRACE_REDIS_URL"
"""Environment variable that names the Redis; holds a password, so only the queue gets it."""
SECRET_VARIABLES = frozenset({REDIS_URL_VARIABLE})
"""Never inherited by a child; a command that needs one passes it by itself."""

_GUARD = Path(__file__).with_name("guard.py")
_CHUNK_BYTES = 65536
_MAX_LINE_BYTES = 65536
_DRAIN_OUTPUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start."""

    argv: tuple[str, ...]
    """Program and arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the launcher's own."""
    stdin: bytes = b""
    """Written to the process's standard input, which is then closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One line that a process wrote."""

    text: str
    """The line without its end."""
    is_error: bool
    """Whether it came on standard error."""


class ChildProcess:
    """A running child process.

    Example:
        child = await ChildProcess.start(Command(argv=("valkey-server", "-"), stdin=b"port 7000"))
        code = await child.follow(lambda line: log.write(line.text))
    """

    def __init__(self, process: asyncio.subprocess.Process, *, stdout_fd: int, stderr_fd: int) -> None:
        """Wrap a started process; use `start`.

        Args:
            process: the process.
            stdout_fd: reading end of its standard output.
            stderr_fd: reading end of its standard error.
        """
        self._process = process
        self._stdout_fd = stdout_fd
        self._stderr_fd = stderr_fd

    @classmethod
    async def start(cls, command: Command) -> ChildProcess:
        """Start the command; it dies with this process."""
        # Pipes of our own: with those of asyncio an end is not seen while a helper of the process holds them open.
        inherited = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
        stdout_fd, stdout_end = os.pipe()
        stderr_fd, stderr_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_GUARD),
                str(os.getpid()),
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=stdout_end,
                stderr=stderr_end,
                env={**inherited, **command.environment},
                start_new_session=True,
            )
        finally:
            os.close(stdout_end)
            os.close(stderr_end)
        assert process.stdin is not None
        # A process that dies at once may close its input before it was read; its exit status says more than that.
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(command.stdin)
            await process.stdin.drain()
        process.stdin.close()
        return cls(process, stdout_fd=stdout_fd, stderr_fd=stderr_fd)

    @property
    def pid(self) -> int:
        """Process id, also the id of its session and process group."""
        return self._process.pid

    async def follow(self, on_output: Callable[[Output], None]) -> int:
        """Hand every line to `on_output` until the process ends, and return its exit status.

        A negative status is the signal that killed it. Whatever it started and left behind is killed. When this call is
        cancelled, the process is killed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                readers = [
                    group.create_task(_pump(self._stdout_fd, on_output, is_error=False)),
                    group.create_task(_pump(self._stderr_fd, on_output, is_error=True)),
                ]
                code = await self._process.wait()
                self._signal_session(signal.SIGKILL)
                # An output that some stranger still holds open must not keep us.
                await asyncio.wait(readers, timeout=_DRAIN_OUTPUT_SECONDS)
                for reader in readers:
                    reader.cancel()
                return code
        finally:
            if self._process.returncode is None:
                self._signal_session(signal.SIGKILL)
                await self._process.wait()

    def terminate(self) -> None:
        """Ask the process to drain and stop (SIGTERM)."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End the process and what it started at once."""
        if self._process.returncode is None:
            self._signal_session(signal.SIGKILL)

    def _signal_session(self, number: signal.Signals) -> None:
        """Signal everything in the process's session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def _pump(read_fd: int, on_output: Callable[[Output], None], *, is_error: bool) -> None:
    """Hand the lines of one pipe on, and close it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
    )
    try:
        async for line in _lines(reader):
            on_output(Output(text=line, is_error=is_error))
    finally:
        transport.close()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Split a stream into lines; one that is too long is cut, so that memory stays bounded."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(rest) > _MAX_LINE_BYTES:
            yield rest.decode("utf-8", "replace")
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace")


def describe_exit(code: int) -> str:
    """Say how a process ended: `exit status 1` or `killed by SIGKILL`."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
