"""Groups per second with 1, 2, 4 and 8 rollouter replicas, where the replicas and not the processors are the limit.

Every replica plays a scripted engine that takes 50 ms per token and has 4 slots; all else is real and a process of its
own: Redis with its log, queue, reward, the rollouters. The bench is the trainer: it feeds tasks, takes batches, and
after each batch commits and publishes a version of one tiny tensor, which every replica adopts. Work per replica is the
same at each count, and a count is measured between the time when all replicas serve and work, and the time when feeding
ends: trajectories put in that window, by the Redis server's clock, over the group size. Each run is worked off to its
end, and its ledger must balance.

`slots_busy` is the share of the slots' time that went into tokens, `cores_busy` the processor time per second of all
processes together: near the number of cores the machine is the limit, and the figures say nothing about the replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from services.common.clients.queue import QueueClient
from services.common.config import RunConfig, dump_config
from services.common.rpc.channel import open_channel
from services.common.rpc.health import check_health
from services.common.telemetry.logging import setup_logging
from services.common.tensors import build_manifest
from services.common.types import (
    GroupOutcome,
    GroupResult,
    OnStale,
    Partition,
    RunId,
    RunSettings,
    SamplingParams,
    WhenFull,
)
from services.trainer.policy_servicer import PolicyServicer, add_policy_servicer
from services.trainer.policy_store import PolicyStore
from tests.factories import make_task
from tests.integration.serving import serving
from tests.redis_server import free_port, running_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import grpc

    from services.common.types import Group, LeasedBatch

COUNTS = (1, 2, 4, 8)
QUICK_COUNTS = (1, 2)
SLOTS = 4
SECONDS_PER_TOKEN = 0.05
# About 16, and not always the same: replicas in lock-step would ask for everything in the same instant.
NUM_TOKENS = (14, 18)
GROUP_SIZE = 4
GROUPS_PER_STEP = 2
"""Per replica, so that batches come as often with one replica as with eight."""
MAX_STALENESS = 2
START_SECONDS = 60.0
WARM_SECONDS = 3.0
TAKE_SECONDS = 30.0
STOP_SECONDS = 15.0
ROOT = Path(__file__).parents[2]
TARGETS = {"two_to_one": 1.7, "linear_8": 0.95}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one count of replicas reached."""

    groups_per_second: float
    """Groups' worth of trajectories put per second."""
    slots_busy: float
    """Share of the slots' time that went into tokens."""
    cores_busy: float
    """Processor seconds per second."""


@dataclass(slots=True, kw_only=True)
class PlayedTrainer:
    """Feeds tasks, takes and commits batches, publishes versions; learns nothing."""

    queue: QueueClient
    """The run's queue."""
    store: PolicyStore
    """What replicas fetch versions from."""
    run_id: RunId
    """The run."""
    groups_per_step: int
    """Groups of one batch."""
    epoch: int = 0
    """This trainer's."""
    step: int = 0
    """Batches committed; also the version published last."""
    num_fed: int = 0
    """Tasks fed."""
    consumed: list[Group] = field(default_factory=list)
    """All groups taken."""

    async def begin(self) -> None:
        """Create the run, publish version 0, and feed as much as there is room for."""
        settings = RunSettings(
            max_staleness=MAX_STALENESS,
            groups_per_version=self.groups_per_step,
            on_stale=OnStale.REFILL,
            max_member_issues=4,
            lease_seconds=10.0,
            max_queue_size=(MAX_STALENESS + 1) * self.groups_per_step,
            max_queue_bytes=10**9,
            when_full=WhenFull.BLOCK,
            min_group_members=GROUP_SIZE,
        )
        self.epoch = (await self.queue.create_run(settings, owner_id=uuid.uuid4().hex)).epoch
        await self.publish()
        await self.feed()

    async def work(self, stop: asyncio.Event) -> None:
        """Use batch after batch; when told to stop, feed nothing more and use what is left."""
        ending = False
        while True:
            batch = await self.take()
            if batch.groups:
                self.step += 1
                await self.publish()
                await self.commit(batch.groups)
            if batch.end_of_data:
                break
            if not stop.is_set():
                await self.feed()
            elif not ending:
                ending = True
                await self.queue.enqueue_tasks((), epoch=self.epoch, partition=Partition.TRAIN, end_of_data=True)
        self.step += 1
        await self.commit((), final=True)

    async def publish(self) -> None:
        """Register and serve the version of the present step."""
        tensors = {"weight": torch.full((16,), float(self.step))}
        manifest = build_manifest(tensors, run_id=self.run_id, epoch=self.epoch, version=self.step)
        await self.queue.register_version(self.step, epoch=self.epoch, digest=manifest.digest)
        self.store.publish(manifest, tensors)

    async def feed(self) -> None:
        """Fill up to the most that may be unconsumed."""
        room = (MAX_STALENESS + 1) * self.groups_per_step - (self.num_fed - len(self.consumed))
        sampling = SamplingParams(max_new_tokens=64)
        tasks = [
            make_task(self.num_fed + index, group_size=GROUP_SIZE, sampling=sampling) for index in range(max(0, room))
        ]
        enqueued = await self.queue.enqueue_tasks(tasks, epoch=self.epoch, partition=Partition.TRAIN)
        self.num_fed += enqueued.num_accepted

    async def take(self) -> LeasedBatch:
        """Take the next batch."""
        batch = await self.queue.lease_batch(
            epoch=self.epoch,
            partition=Partition.TRAIN,
            num_groups=self.groups_per_step,
            use_version=self.step,
            wait_seconds=TAKE_SECONDS,
            request_id=uuid.uuid4().hex,
        )
        self.consumed += batch.groups
        return batch

    async def commit(self, groups: Sequence[Group], *, final: bool = False) -> None:
        """Make the consumption of a batch final."""
        results = [
            GroupResult(task_id=group.task_id, attempt=group.attempt, outcome=GroupOutcome.CONSUMED) for group in groups
        ]
        await self.queue.commit_batch(
            results,
            epoch=self.epoch,
            partition=Partition.TRAIN,
            commit_number=self.step,
            policy_version=self.store.newest_version,
            final=final,
        )

    async def num_serving(self) -> int:
        """Rollouters that have adopted a version and work."""
        replicas = (await self.queue.get_stats()).replicas
        return sum(report.status.service == "rollouter" and report.status.state == "serving" for report in replicas)

    async def check_ledger(self) -> None:
        """A run that lost something has no speed."""
        for ledger in await self.queue.get_ledger():
            assert (ledger.lost, ledger.trained_twice) == (0, 0), ledger


class Site:
    """The processes of one run, in a folder of their own."""

    def __init__(self, folder: Path, redis_url: str, *, num_replicas: int) -> None:
        """Choose addresses and write the configuration; nothing is started."""
        self.folder = folder
        self.run_id = RunId(f"scaling-{num_replicas}")
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in ("queue", "reward", "trainer")}
        self.config_file = folder / "config.toml"
        self.config_file.write_text(dump_config(self._config()))
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "HEADRACE_REDIS_URL": redis_url,
            "HEADRACE_PARENT_PID": str(os.getpid()),
            "OMP_NUM_THREADS": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _config(self) -> RunConfig:
        """The configuration that all processes read."""
        script = self.folder / "script.json"
        rule = {"replies": ["the answer is 42"], "num_tokens": NUM_TOKENS}
        script.write_text(json.dumps({"seconds_per_token": SECONDS_PER_TOKEN, "rules": [rule]}))
        return RunConfig.model_validate(
            {
                "run": {"name": self.run_id, "directory": str(self.folder)},
                "model": {"path": "unused"},
                "data": {"source": "unused.jsonl"},
                "engine": {"kind": "scripted", "script": str(script), "max_slots": SLOTS},
                "async": {"mode": "fully_async", "max_staleness": MAX_STALENESS},
                "telemetry": {"traces": False, "log_level": "warning"},
                **{name: {"address": address} for name, address in self.addresses.items()},
            }
        )

    @contextmanager
    def running(self, service: str, *words: str) -> Iterator[None]:
        """Run a service inside the block."""
        name = words[-1] if words else service
        command = [sys.executable, "-m", f"services.{service}", "--config", str(self.config_file), *words]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)
        self._processes[name] = process
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def wait_until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until something is true.

        Raises:
            RuntimeError: a process has ended instead.
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not await condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    words = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{name} ended with exit status {process.returncode}:\n{words}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} within {START_SECONDS} s did not happen")
            await asyncio.sleep(0.1)

    async def wait_serving(self, name: str) -> None:
        """Wait until a service serves."""

        async def serves() -> bool:
            return await check_health(self.addresses[name], timeout_seconds=2.0) == "SERVING"

        await self.wait_until(serves, f"a serving {name}")


async def measure(num_replicas: int, *, seconds: float) -> Measured:
    """Start everything with so many replicas, and measure for some seconds."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_url = stack.enter_context(running_server(folder, "--appendonly", "yes", "--appendfsync", "everysec"))
        site = Site(folder, redis_url, num_replicas=num_replicas)
        for service in ("queue", "reward"):
            stack.enter_context(site.running(service))
        for service in ("queue", "reward"):
            await site.wait_serving(service)
        store = PolicyStore(site.run_id, keep_versions=2)
        trainer = PlayedTrainer(
            queue=QueueClient(await stack.enter_async_context(open_channel(site.addresses["queue"])), site.run_id),
            store=store,
            run_id=site.run_id,
            groups_per_step=GROUPS_PER_STEP * num_replicas,
        )
        await trainer.begin()

        async def drain() -> None:
            store.close()

        def register(server: grpc.aio.Server) -> None:
            add_policy_servicer(PolicyServicer(store), server)

        await stack.enter_async_context(serving(register, address=site.addresses["trainer"], on_drain=drain))
        for index in range(num_replicas):
            stack.enter_context(site.running("rollouter", "--replica-id", f"rollouter-{index}"))
        return await measure_running(trainer, site, num_replicas=num_replicas, seconds=seconds)


async def measure_running(trainer: PlayedTrainer, site: Site, *, num_replicas: int, seconds: float) -> Measured:
    """Train while the replicas start, through the window, and to the end of what was fed."""

    async def all_serve() -> bool:
        return await trainer.num_serving() == num_replicas

    stop = asyncio.Event()
    async with asyncio.timeout(2 * START_SECONDS + WARM_SECONDS + seconds), asyncio.TaskGroup() as tasks:
        tasks.create_task(trainer.work(stop))
        await site.wait_until(all_serve, f"{num_replicas} serving replicas")
        await asyncio.sleep(WARM_SECONDS)
        # Redis runs on this machine, so its clock is this one.
        began, cpu_began = time.time(), cpu_seconds()
        await asyncio.sleep(seconds)
        ended, cpu_ended = time.time(), cpu_seconds()
        stop.set()
    await trainer.check_ledger()
    put = [
        trajectory
        for group in trainer.consumed
        for trajectory, put_time in zip(group.trajectories, group.put_times, strict=True)
        if began < put_time <= ended
    ]
    token_seconds = SECONDS_PER_TOKEN * sum(trajectory.num_sampled_tokens for trajectory in put)
    return Measured(
        groups_per_second=len(put) / GROUP_SIZE / (ended - began),
        slots_busy=token_seconds / (ended - began) / (SLOTS * num_replicas),
        cores_busy=(cpu_ended - cpu_began) / (ended - began),
    )


def cpu_seconds() -> float:
    """Processor time of this process and of all that it started."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main() -> None:
    """Run the bench and print its one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one and two replicas for 15 s each instead of 60 s")
    quick = parser.parse_args().quick
    setup_logging("bench", level="warning")
    measured = {}
    for count in QUICK_COUNTS if quick else COUNTS:
        measured[count] = asyncio.run(measure(count, seconds=15.0 if quick else 60.0))
        print(f"replicas {count}: {measured[count].groups_per_second:.2f} groups/s", flush=True)
    figures: dict[str, float] = {"cores": os.cpu_count() or 0}
    for count, one in measured.items():
        figures[f"groups_per_second_{count}"] = round(one.groups_per_second, 3)
        figures[f"linear_{count}"] = round(one.groups_per_second / count / measured[1].groups_per_second, 3)
        figures[f"slots_busy_{count}"] = round(one.slots_busy, 3)
        figures[f"cores_busy_{count}"] = round(one.cores_busy, 2)
    figures["two_to_one"] = round(2 * figures["linear_2"], 3)
    targets = {name: least for name, least in TARGETS.items() if name in figures}
    met = all(figures[name] >= least for name, least in targets.items())
    print(json.dumps({"bench": "scaling", "figures": figures, "targets": targets, "met": met}))


if __name__ == "__main__":
    main()
