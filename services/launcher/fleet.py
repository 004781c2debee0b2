"""Everything that a run needs on this machine: Redis, the services, the rollouters; started, kept running, drained."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from services.common.errors import HeadraceError
from services.common.run_folder import RUN_ID_VARIABLE
from services.common.types import RunId
from services.launcher.log_file import LogFile
from services.launcher.process import REDIS_URL_VARIABLE, Command
from services.launcher.redis_server import ping
from services.launcher.run_directory import newest_step
from services.launcher.supervisor import EndKind, Service, ServiceEnd, SupervisedService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from services.common.config import RunConfig
    from services.launcher.redis_server import EmbeddedRedis
    from services.launcher.run_directory import RunDirectory

TRAINER_DONE = 0
"""Exit status of a trainer that has finished."""
TRAINER_CANNOT_GO_ON = 3
"""Exit status of a trainer that would fail again."""
TRAINER_REPLACED = 4
"""Exit status of a trainer whose run was taken over by a newer one."""

_READY_SECONDS = 120.0
_DRAIN_SECONDS = 20.0
_TRAINER_DRAIN_SECONDS = 120.0
_HEALTH_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """What is to be started."""

    config: RunConfig
    """With addresses and model in place, as written to the run directory."""
    directory: RunDirectory
    """The run's folder."""
    redis_url: str
    """The Redis to use; a secret."""
    embedded: EmbeddedRedis | None
    """The server to start for it; None when it is the user's."""
    rollouter_addresses: tuple[str, ...]
    """Where each rollouter listens."""


class Fleet:
    """The processes of one run.

    Example:
        async with asyncio.TaskGroup() as group:
            fleet = Fleet(plan, report=print, on_trainer_line=print)
            await fleet.start(group)
            end = await fleet.wait_end()
            await fleet.drain()
    """

    def __init__(
        self, plan: FleetPlan, *, report: Callable[[str], None], on_trainer_line: Callable[[str], None]
    ) -> None:
        """Prepare; nothing is started before `start`.

        Args:
            plan: what is to be started.
            report: told a line for people at every death, restart and forced stop.
            on_trainer_line: told every line of the trainer's standard output.
        """
        self._plan = plan
        self._report = report
        self.redis = self._redis() if plan.embedded else None
        self.queue = self._supervised("queue", environment={REDIS_URL_VARIABLE: plan.redis_url})
        self.reward = self._supervised("reward")
        self.trainer = self._supervised(
            "trainer",
            threads=plan.config.trainer.threads,
            final_codes=frozenset({TRAINER_DONE, TRAINER_CANNOT_GO_ON, TRAINER_REPLACED}),
            progress=partial(newest_step, plan.directory.path),
            on_line=on_trainer_line,
        )
        self.rollouters = [
            self._rollouter(index, address=address) for index, address in enumerate(plan.rollouter_addresses)
        ]
        self._tasks: dict[str, asyncio.Task[ServiceEnd]] = {}

    @property
    def all(self) -> list[SupervisedService]:
        """Every process under supervision, in the order in which they are started."""
        redis = [self.redis] if self.redis else []
        return [*redis, self.queue, self.reward, self.trainer, *self.rollouters]

    @property
    def has_trained(self) -> bool:
        """Whether the run has results that are worth keeping."""
        return (self._plan.directory.path / "metrics.jsonl").exists()

    def last_words(self, name: str) -> str:
        """What a service wrote last, which says why it ended."""
        tail = next(one.service.log.tail for one in self.all if one.name == name)
        words = next((line for line in reversed(tail) if line.strip()), "it wrote nothing")
        return re.sub(r"^headrace( \w+)?: ", "", words)

    async def start(self, group: asyncio.TaskGroup) -> ServiceEnd | None:
        """Start everything; Redis and the queue must serve before the rest begins.

        Args:
            group: what the supervision runs in.

        Returns:
            How the fleet ended when one of those two could not be started; None when all is well.
        """
        first = [self.redis, self.queue] if self.redis else [self.queue]
        for supervised in first:
            self._launch(group, supervised)
            if not await supervised.wait_serving():
                return await self._tasks[supervised.name]
        for supervised in (self.reward, self.trainer, *self.rollouters):
            self._launch(group, supervised)
        return None

    async def wait_end(self) -> tuple[str, ServiceEnd]:
        """Wait until the trainer is done or something cannot be kept running; returns which service and how."""
        pending = set(self._tasks.values())
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            ends = {task.get_name(): task.result() for task in done}
            # When several ended in the same instant, the trainer's word counts.
            for name in sorted(ends, key=lambda name: name != self.trainer.name):
                if name == self.trainer.name or failed(ends[name]):
                    return name, ends[name]

    async def stop_trainer(self, *, grace_seconds: float = _TRAINER_DRAIN_SECONDS) -> None:
        """Let the trainer finish its step, write a checkpoint and commit."""
        if self.trainer.name in self._tasks:
            await self.trainer.stop(grace_seconds=grace_seconds)

    async def drain(self) -> None:
        """Stop everything that still runs: who works first, who keeps state last."""
        await self._stop([*self.rollouters, self.trainer])
        await self._stop([self.reward, self.queue])
        if self.redis:
            await self._stop([self.redis])

    def kill(self) -> None:
        """End everything at once."""
        for supervised in self.all:
            supervised.kill()

    async def _stop(self, services: Sequence[SupervisedService]) -> None:
        """Stop some services side by side."""
        async with asyncio.TaskGroup() as group:
            for supervised in services:
                if supervised.name in self._tasks:
                    group.create_task(supervised.stop(grace_seconds=_DRAIN_SECONDS))

    def _launch(self, group: asyncio.TaskGroup, supervised: SupervisedService) -> None:
        """Begin to supervise one service."""
        self._tasks[supervised.name] = group.create_task(supervised.run(), name=supervised.name)

    def _redis(self) -> SupervisedService:
        """Describe the embedded Redis."""
        embedded = self._plan.embedded
        assert embedded is not None

        async def probe() -> bool:
            return not await ping(embedded.url)

        log = LogFile(self._plan.directory.logs / "redis.log")
        service = Service(name="redis", command=lambda _: embedded.command, log=log, probe=probe)
        return SupervisedService(service, report=self._report)

    def _rollouter(self, index: int, *, address: str) -> SupervisedService:
        """Describe one rollouter."""
        name = f"rollouter-{index}"
        return self._supervised(
            "rollouter",
            instance=name,
            address=address,
            arguments=("--address", address, "--replica-id", name),
            threads=self._plan.config.engine.threads,
            # It leaves by itself when the run has finished, and when somebody told it to drain; then it is missed.
            final_codes=frozenset({0}),
            confirm_end=self._run_finished,
        )

    async def _run_finished(self) -> bool:
        """Whether the queue says that the run has finished."""
        from services.common.clients.queue import QueueClient  # noqa: PLC0415 - grpc is loaded only when it is needed
        from services.common.rpc.channel import open_channel  # noqa: PLC0415

        channel = open_channel(self._plan.config.queue.address)
        try:
            return (await QueueClient(channel, RunId(self._plan.directory.run_id)).get_stats()).run_finished
        except HeadraceError:
            return False
        finally:
            await channel.close(None)

    def _supervised(
        self,
        module: str,
        *,
        instance: str = "",
        address: str = "",
        arguments: tuple[str, ...] = (),
        threads: int = 1,
        environment: dict[str, str] | None = None,
        final_codes: frozenset[int] = frozenset(),
        confirm_end: Callable[[], Awaitable[bool]] | None = None,
        progress: Callable[[], int] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> SupervisedService:
        """Describe one service."""
        name = instance or module
        base = service_environment(self._plan.directory, threads=threads) | (environment or {})
        argv = (
            sys.executable,
            "-m",
            f"services.{module}",
            "--config",
            str(self._plan.directory.config_file),
            *arguments,
        )

        def command(num_starts: int) -> Command:
            # A trainer that comes back goes on from its checkpoint, whatever the configuration says.
            resume = ("--run.resume=true",) if module == "trainer" and num_starts else ()
            return Command(argv=(*argv, *resume), environment=base)

        service = Service(
            name=name,
            command=command,
            log=LogFile(self._plan.directory.logs / f"{name}.log"),
            probe=health_probe(address or getattr(self._plan.config, module).address),
            final_codes=final_codes,
            confirm_end=confirm_end,
            progress=progress,
            on_line=on_line,
        )
        return SupervisedService(service, report=self._report)


def service_environment(directory: RunDirectory, *, threads: int) -> dict[str, str]:
    """Variables that every service gets.

    Args:
        directory: of the run.
        threads: compute threads; 0 leaves the choice to the libraries.
    """
    environment = {
        RUN_ID_VARIABLE: directory.run_id,
        "HEADRACE_PARENT_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return environment


def health_probe(address: str) -> Callable[[], Awaitable[bool]]:
    """Ask the service at `address` whether it serves."""

    async def probe() -> bool:
        from services.common.rpc.health import check_health  # noqa: PLC0415 - grpc is loaded only when it is needed

        return await check_health(address, timeout_seconds=_HEALTH_SECONDS) == "SERVING"

    return probe


def failed(end: ServiceEnd) -> bool:
    """Whether an end means that the run has failed."""
    return end.kind is EndKind.GAVE_UP or (end.kind is EndKind.DONE and end.code != TRAINER_DONE)
