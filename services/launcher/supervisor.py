"""Keeps processes running: restarts what dies, kills what hangs, gives up when it is in vain.

    STARTING -> SERVING -> (dies) -> PAUSED -> STARTING ...
       |           |
       |           `-> ENDED     its exit status says that its work is done or that it cannot go on
       |-> ENDED                 it refused its configuration before it ever served
       `-> ENDED                 it died too often, or in vain (`RestartPolicy`)
    any state -> ENDED           `stop` or `kill` was called

A service counts as serving once its probe succeeds; one without a probe, once it has lived for
`RestartPolicy.settle_seconds`. Redis and the four services are watched by the same rules. A service that comes up, dies
by the same error and comes up again would do so for ever: deaths by its own error count in a row until it has got on,
by its own measure of progress if it has one, else by the time that it served.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from services.launcher.process import ChildProcess, Command, Output, describe_exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.launcher.log_file import LogFile

EXIT_BAD_INPUT = 2
"""Exit status of a service that refuses its configuration."""

_PROBE_SECONDS = 0.2
_PROBE_INTERVAL_SECONDS = 3.0
_MESSAGE_CHARACTERS = 500
_SIGNALS_FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})


class ServiceState(StrEnum):
    """Where a supervised process is in its life."""

    STARTING = "starting"
    """It was started and does not serve yet."""
    SERVING = "serving"
    """It serves."""
    PAUSED = "paused"
    """It died and will be started again after a pause."""
    ENDED = "ended"
    """It will not be started again."""


class EndKind(StrEnum):
    """Why a service is not started again."""

    DONE = "done"
    """It ended with one of its final exit statuses."""
    STOPPED = "stopped"
    """The launcher stopped it."""
    GAVE_UP = "gave_up"
    """It died too often, or refused its configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEnd:
    """How a service ended for good."""

    kind: EndKind
    """Why."""
    code: int
    """Exit status of its last process; negative for a signal."""
    message: str = ""
    """For people: service, exit status and last log lines; set when the kind is `gave_up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How patient the supervisor is."""

    initial_pause_seconds: float = 0.2
    """Pause before the first restart."""
    max_pause_seconds: float = 5.0
    """The pause doubles with every death in a row up to this."""
    settle_seconds: float = 15.0
    """A service that lived so long has started well: the row of deaths without serving begins anew."""
    steady_seconds: float = 60.0
    """A service without a measure of progress that served for so long has got on: the row of errors begins anew."""
    max_errors_in_a_row: int = 5
    """Deaths by its own error without having got on in between, after which it is given up."""
    max_deaths_in_a_row: int = 5
    """Deaths without having served in between, after which it is given up."""
    max_kills_in_a_row: int = 10
    """The same for deaths by SIGKILL from outside, which are seldom the service's own fault."""
    max_restarts: int = 20
    """Restarts within the window, or without any progress where it is measured, after which it is given up."""
    window_seconds: float = 120.0
    """The window."""
    start_seconds: float = 180.0
    """A service that does not serve after so long is killed, which counts as a death."""
    hang_seconds: float = 30.0
    """A serving service whose probe fails for so long is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What to keep running."""

    name: str
    """Names it in logs and messages."""
    command: Callable[[int], Command]
    """How it is started, given the number of starts before."""
    log: LogFile
    """Where its output goes."""
    probe: Callable[[], Awaitable[bool]] | None = None
    """Whether it serves."""
    final_codes: frozenset[int] = frozenset()
    """Exit statuses after which it is not started again."""
    confirm_end: Callable[[], Awaitable[bool]] | None = None
    """Asked whether a final exit status really is the end; None believes it."""
    progress: Callable[[], int] | None = None
    """How far its work has got, a number that only grows while it gets on; read at every death. None goes by time."""
    on_line: Callable[[str], None] | None = None
    """Told of every line on its standard output."""


class SupervisedService:
    """One service under supervision; `run` lasts as long as the service is wanted."""

    def __init__(self, service: Service, *, report: Callable[[str], None], policy: RestartPolicy | None = None) -> None:
        """Prepare; nothing is started before `run`.

        Args:
            service: what to keep running.
            report: told one line for people at every death and restart.
            policy: how patient to be.
        """
        self.service = service
        self.state = ServiceState.STARTING
        self.num_restarts = 0
        self._report = report
        self._policy = policy or RestartPolicy()
        self._child: ChildProcess | None = None
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._restart_times: deque[float] = deque()
        self._deaths_in_a_row = 0
        self._num_vain_deaths = 0
        self._num_vain_errors = 0
        self._serving_since = 0.0
        self._furthest = service.progress() if service.progress else 0
        self._served = False
        self._hung = False

    @property
    def name(self) -> str:
        """Name of the service."""
        return self.service.name

    @property
    def pid(self) -> int | None:
        """Process id, while a process runs."""
        return self._child.pid if self._child else None

    async def run(self) -> ServiceEnd:
        """Keep the service running until it ends for good."""
        try:
            while True:
                code = await self._run_once(self.num_restarts)
                end = await self._end_after(code)
                if end is not None:
                    return end
                await self._pause(code)
                if self._stopping.is_set():
                    return ServiceEnd(kind=EndKind.STOPPED, code=code)
                self.num_restarts += 1
        finally:
            self._set_state(ServiceState.ENDED)
            self._ended.set()
            self.service.log.close()

    async def wait_serving(self) -> bool:
        """Wait until the service serves; False when it ended instead. Bounded by `start_seconds` and the restarts."""
        while self.state not in (ServiceState.SERVING, ServiceState.ENDED):
            self._changed.clear()
            await self._changed.wait()
        return self.state is ServiceState.SERVING

    async def stop(self, *, grace_seconds: float) -> None:
        """Ask the process to drain, wait for its end, and kill it when the grace time is over."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._ended.wait()
        except TimeoutError:
            log = self.service.log.path
            self._report(f"{self.name} did not stop within {grace_seconds:g} s and was killed; see {log}")
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """End the service at once."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    async def _run_once(self, num_starts: int) -> int:
        """Start the process, watch it, and return its exit status."""
        self._set_state(ServiceState.STARTING)
        self._served = False
        self._hung = False
        self._child = await ChildProcess.start(self.service.command(num_starts))
        if self._stopping.is_set():
            self._child.terminate()
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(self._child))
                code = await self._child.follow(self._on_output)
                watcher.cancel()
                return code
        finally:
            self._child = None

    def _on_output(self, line: Output) -> None:
        """Log a line, and pass on what the service says on its standard output."""
        self.service.log.write(line.text)
        if self.service.on_line is not None and not line.is_error:
            self.service.on_line(line.text)

    async def _watch(self, child: ChildProcess) -> None:
        """Find out whether the process serves, and kill it when it hangs."""
        clock = asyncio.get_running_loop().time
        start = good = clock()
        probe = self.service.probe
        while True:
            now = clock()
            if probe is not None and await probe():
                good = clock()
                self._set_serving()
            elif probe is None and now - start >= self._policy.settle_seconds:
                good = now
                self._set_serving()
            if self._served and clock() - start >= self._policy.settle_seconds:
                self._deaths_in_a_row = 0
            patience = self._policy.hang_seconds if self._served else self._policy.start_seconds
            if clock() - good > patience and not self._stopping.is_set():
                self._report(f"{self.name} did not answer for {patience:g} s and is killed")
                self._hung = True
                child.kill()
                return
            await asyncio.sleep(_PROBE_INTERVAL_SECONDS if self._served else _PROBE_SECONDS)

    async def _end_after(self, code: int) -> ServiceEnd | None:
        """Decide whether a death is the end."""
        confirm = self.service.confirm_end
        is_done = code in self.service.final_codes and (confirm is None or await confirm())
        if self._stopping.is_set():
            return ServiceEnd(kind=EndKind.STOPPED, code=code)
        if is_done:
            return ServiceEnd(kind=EndKind.DONE, code=code)
        now = asyncio.get_running_loop().time()
        self._deaths_in_a_row = 1 if self._served else self._deaths_in_a_row + 1
        is_error = self._hung or (code != 0 and code not in _SIGNALS_FROM_OUTSIDE)
        self._count_in_vain(now, is_error=is_error)
        while self._restart_times and self._restart_times[0] < now - self._policy.window_seconds:
            self._restart_times.popleft()
        if code == EXIT_BAD_INPUT and not self._served and self.num_restarts == 0:
            return self._given_up(code, "refused to start")
        in_vain = self._in_vain(is_killed=code == -signal.SIGKILL and not self._hung)
        if in_vain:
            return self._given_up(code, in_vain)
        if len(self._restart_times) >= self._policy.max_restarts:
            num_deaths = len(self._restart_times) + 1
            return self._given_up(code, f"died {num_deaths} times in {self._policy.window_seconds:g} s")
        self._restart_times.append(now)
        return None

    def _count_in_vain(self, now: float, *, is_error: bool) -> None:
        """Count a death, beginning anew when the service had got on since the one before."""
        if self.service.progress is None:
            got_on = self._served and now - self._serving_since >= self._policy.steady_seconds
        else:
            reached = self.service.progress()
            got_on = reached > self._furthest
            self._furthest = max(reached, self._furthest)
        if got_on:
            self._num_vain_deaths = self._num_vain_errors = 0
        self._num_vain_deaths += 1
        self._num_vain_errors += is_error

    def _in_vain(self, *, is_killed: bool) -> str:
        """Say why another start would be in vain; empty when it may help."""
        policy = self._policy
        limit = policy.max_kills_in_a_row if is_killed else policy.max_deaths_in_a_row
        if self._deaths_in_a_row >= limit:
            return f"died {self._deaths_in_a_row} times without ever serving in between"
        measured = self.service.progress is not None
        since = "without getting any further" if measured else f"without serving {policy.steady_seconds:g} s in between"
        if self._num_vain_errors >= policy.max_errors_in_a_row:
            return f"died {self._num_vain_errors} times by its own error {since}"
        # Whoever kills it from outside, such as the kernel for want of memory, would do so for ever.
        if measured and self._num_vain_deaths > policy.max_restarts:
            return f"died {self._num_vain_deaths} times {since}"
        return ""

    def _given_up(self, code: int, what: str) -> ServiceEnd:
        """Word the end of a service that cannot be kept running, in one sentence."""
        message = f"{self.name} {what} ({describe_exit(code)})"
        # A frame of a traceback's tree has no letters and says nothing.
        said = next((line for line in reversed(self.service.log.tail) if any(map(str.isalpha, line))), "")
        if said:
            message = f"{message}; it said last: {said.strip(' |')[:_MESSAGE_CHARACTERS]}"
        return ServiceEnd(kind=EndKind.GAVE_UP, code=code, message=f"{message}; log: {self.service.log.path}")

    async def _pause(self, code: int) -> None:
        """Wait before a restart; a wish to stop ends the wait."""
        pause = min(
            self._policy.max_pause_seconds,
            self._policy.initial_pause_seconds * 2.0 ** (self._deaths_in_a_row - 1),
        )
        self._set_state(ServiceState.PAUSED)
        self._report(
            f"{self.name} died ({describe_exit(code)}) and is started again in {pause:g} s, "
            f"restart {len(self._restart_times)} of at most {self._policy.max_restarts} "
            f"within {self._policy.window_seconds:g} s"
        )
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _set_serving(self) -> None:
        """Note that the service serves."""
        if not self._served:
            self._serving_since = asyncio.get_running_loop().time()
        self._served = True
        self._set_state(ServiceState.SERVING)

    def _set_state(self, state: ServiceState) -> None:
        """Move to another state and wake who waits for it."""
        if state is not self.state:
            self.state = state
            self._changed.set()
