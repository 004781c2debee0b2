"""In-memory stand-ins for the queue and the backend: quick, exact, and easy to break on purpose."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch

from services.common.config import RunConfig
from services.common.errors import FencedError, NotFoundError, ReconcileRequiredError, RunFinishedError
from services.common.types import (
    DeadLetter,
    Enqueued,
    Group,
    GroupOutcome,
    LeasedBatch,
    Ledger,
    MemberKey,
    Message,
    Partition,
    PartitionStats,
    ReplicaId,
    ReplicaReport,
    ReplicaStatus,
    RunId,
    RunState,
    RunStats,
    Score,
    Task,
    TaskId,
    TaskLedger,
    TrajectoryLedger,
)
from services.trainer.backend.port import BackendState, PolicyWeights, StepMetrics
from services.trainer.backend_thread import BackendThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.config import run_settings
from services.trainer.dataset import DataRow, RunData
from services.trainer.loop import TrainingLoop
from services.trainer.parts import LoopParts
from services.trainer.publishing import Publisher
from services.trainer.queue_link import QueueLink
from services.trainer.run_directory import RunDirectory
from services.trainer.status import TrainerStatus
from services.trainer.tasks import training_tasks, validation_tasks
from services.trainer.versions import VersionFile
from tests.factories import make_trajectory


class KilledError(Exception):
    """Stands for the death of the process."""


@dataclass
class Entry:
    """A task in the fake queue."""

    task: Task
    min_version: int
    attempt: int = 0
    group: Group | None = None
    is_leased: bool = False


@dataclass
class Stream:
    """One partition of the fake queue."""

    entries: dict[TaskId, Entry] = field(default_factory=dict)
    ended: dict[TaskId, str] = field(default_factory=dict)
    fed: int = 0
    refilled: int = 0
    consumed: int = 0
    filtered: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    failed: int = 0
    data_ended: bool = False
    requests: dict[str, tuple[Group, ...]] = field(default_factory=dict)


class FakeQueue:
    """The queue's rules without Redis; rollouters are instantaneous and serve the newest registered version."""

    def __init__(self, *, reward=lambda sequence, member: float((sequence + member) % 2), rollouters=True):
        self.reward = reward
        self.rollouters = rollouters
        self.settings = None
        self.epoch = 0
        self.owner = ""
        self.commit_number = 0
        self.version = -1
        self.digest = ""
        self.base = -1
        self.carry = 0
        self.replica_version = -1
        self.finished = False
        self.streams = {partition: Stream() for partition in Partition}
        self.trained: list[tuple[TaskId, int]] = []
        self.commits: list[tuple[int, tuple]] = []
        self.reconciled: list[dict] = []
        self.statuses: list[ReplicaStatus] = []
        self.registered: list[tuple[int, bool]] = []
        self.page_size = 1000
        self.before: dict[str, object] = {}
        self.after: dict[str, object] = {}
        self.unscorable: set[TaskId] = set()
        self._news = asyncio.Event()

    # Hooks: `queue.after["commit_batch"] = die` runs once the call was applied.
    def _hook(self, hooks, name):
        if name in hooks:
            hooks[name]()

    def _admit(self, epoch):
        if self.settings is None:
            raise NotFoundError("run demo does not exist")
        if epoch < self.epoch:
            raise FencedError(f"epoch {epoch} was replaced by {self.epoch}")
        self.epoch = epoch

    async def create_run(self, settings, *, owner_id):
        created = self.settings is None
        self.settings = settings
        if owner_id != self.owner:
            self.owner, self.epoch = owner_id, self.epoch + 1
        return RunState(
            epoch=self.epoch,
            commit_number=self.commit_number,
            policy_version=self.version,
            replica_version=self.replica_version,
            created=created,
            finished=self.finished,
        )

    async def enqueue_tasks(self, tasks, *, epoch, partition, end_of_data=False, pinned_version=None, num_filtered=0):
        self._admit(epoch)
        if self.finished:
            raise RunFinishedError("the run has finished")
        stream, settings = self.streams[partition], self.settings
        accepted = 0
        for task in tasks:
            known = task.task_id in stream.entries or task.task_id in stream.ended
            if not known:
                used = len(stream.entries) + self.carry
                limit = (settings.max_staleness + self.version - self.base + 1) * settings.groups_per_version
                if partition is Partition.TRAIN and used >= limit:
                    break
                oldest = self.base + used // settings.groups_per_version - settings.max_staleness
                min_version = max(self.base, oldest) if partition is Partition.TRAIN else pinned_version
                stream.entries[task.task_id] = Entry(task=task, min_version=min_version)
                stream.fed += 1
            accepted += 1
        stream.data_ended = end_of_data and accepted == len(tasks)
        self._generate()
        return Enqueued(num_accepted=accepted, remaining_capacity=0)

    def _generate(self):
        if not self.rollouters:
            return
        for partition, stream in self.streams.items():
            for task_id, entry in list(stream.entries.items()):
                if task_id in self.unscorable:
                    del stream.entries[task_id]
                    stream.ended[task_id] = "dead_lettered"
                    stream.failed += entry.task.group_size
                    stream.dead_lettered += 1
                elif entry.group is None and entry.min_version <= self.version:
                    entry.group = self._group(partition, entry)
        self._tell()

    def _group(self, partition, entry):
        task = entry.task
        members = []
        for member in range(task.group_size):
            key = MemberKey(partition=partition, task_id=task.task_id, attempt=entry.attempt, member=member)
            reward = self.reward(task.sequence, member)
            members.append(
                make_trajectory(
                    task.sequence,
                    member,
                    key=key,
                    version=self.version,
                    score=Score(reward=reward, parts={}, scorer="fake", scorer_version="1"),
                )
            )
        return Group(
            task_id=task.task_id,
            attempt=entry.attempt,
            sequence=task.sequence,
            group_size=task.group_size,
            oldest_version=self.version,
            trajectories=tuple(members),
            put_times=tuple(1.0 for _ in members),
        )

    def _tell(self):
        self._news.set()
        self._news = asyncio.Event()

    async def lease_batch(self, *, epoch, partition, num_groups, use_version, wait_seconds, request_id, max_bytes=0):
        try:
            async with asyncio.timeout(wait_seconds):
                while not (found := self._lease(epoch, partition, num_groups, use_version, request_id)).groups:
                    if found.end_of_data:
                        break
                    await self._news.wait()
        except TimeoutError:
            pass
        self._hook(self.after, "lease_batch")
        return found

    def _lease(self, epoch, partition, num_groups, use_version, request_id):
        self._admit(epoch)
        stream = self.streams[partition]
        groups = stream.requests.get(request_id, ())
        if partition is Partition.TRAIN:
            self._refill(stream, use_version)
        ready = sorted(
            (entry for entry in stream.entries.values() if entry.group and not entry.is_leased),
            key=lambda entry: entry.task.sequence,
        )
        waiting = sum(not entry.is_leased for entry in stream.entries.values())
        is_rest = stream.data_ended and len(ready) == waiting
        if not groups and ready and (len(ready) >= num_groups or is_rest):
            for entry in ready[: min(num_groups, self.page_size)]:
                entry.is_leased = True
                groups += (entry.group,)
            stream.requests[request_id] = groups
        left = sum(not entry.is_leased for entry in stream.entries.values())
        return LeasedBatch(
            groups=groups,
            end_of_data=stream.data_ended and left == 0,
            commit_number=self.commit_number,
            num_ready=max(0, len(ready) - len(groups)),
        )

    def _refill(self, stream, use_version):
        for entry in stream.entries.values():
            is_idle = entry.group is not None and not entry.is_leased
            if is_idle and use_version - entry.group.oldest_version > self.settings.max_staleness:
                entry.group, entry.attempt = None, entry.attempt + 1
                entry.min_version = max(entry.min_version, use_version - self.settings.max_staleness)
                stream.dropped += 1
                stream.fed += 1
                stream.refilled += 1
        self._generate()

    async def commit_batch(self, results, *, epoch, partition, commit_number, policy_version, final=False):
        self._hook(self.before, "commit_batch")
        self._admit(epoch)
        stream = self.streams[partition]
        if partition is Partition.TRAIN:
            self.commits.append((commit_number, tuple(results)))
            if commit_number > self.commit_number + 1:
                raise ReconcileRequiredError(f"commit {commit_number} does not follow {self.commit_number}")
            if commit_number <= self.commit_number:
                return self.commit_number
            self.commit_number = commit_number
        consumed = 0
        for result in results:
            stream.entries.pop(result.task_id, None)
            stream.ended[result.task_id] = result.outcome.value
            if result.outcome is GroupOutcome.CONSUMED:
                consumed += 1
                if partition is Partition.TRAIN:
                    self.trained.append((result.task_id, result.attempt))
            else:
                stream.filtered += 1
        stream.consumed += consumed
        if partition is Partition.TRAIN:
            base = max(self.base, policy_version)
            self.carry = max(0, self.carry + consumed - (base - self.base) * self.settings.groups_per_version)
            self.base = base
            self.finished = self.finished or final
        self._hook(self.after, "commit_batch")
        return self.commit_number

    async def release_batch(self, *, epoch, partition):
        self._admit(epoch)
        leased = [entry for entry in self.streams[partition].entries.values() if entry.is_leased]
        for entry in leased:
            entry.is_leased = False
        self.streams[partition].requests.clear()
        return len(leased)

    async def register_version(self, version, *, epoch, digest, branch=False):
        self._admit(epoch)
        assert version >= self.version
        assert version > self.version or digest == self.digest
        self.registered.append((version, branch))
        self.version, self.digest = version, digest
        if branch or self.base < 0:
            self.base, self.carry = version, 0
        self._generate()

    async def reconcile(self, *, epoch, commit_number, first_open_sequence, ended_sequences, policy_version, **counts):
        self._admit(epoch)
        self.reconciled.append({"commit_number": commit_number, "first_open_sequence": first_open_sequence, **counts})
        self.commit_number = commit_number
        stream = self.streams[Partition.TRAIN]
        gone = [
            task_id
            for task_id, entry in stream.entries.items()
            if entry.task.sequence < first_open_sequence or entry.task.sequence in set(ended_sequences)
        ]
        for task_id in gone:
            del stream.entries[task_id]
        ended = [*range(first_open_sequence), *ended_sequences]
        stream.ended = {TaskId(f"{sequence:08d}"): "consumed" for sequence in ended}
        stream.consumed, stream.filtered = counts["num_consumed"], counts["num_filtered"]
        self.version = max(self.version, policy_version)
        self.base, self.carry = self.version, 0
        return len(gone)

    async def heartbeat(self, status):
        self.statuses.append(status)
        return self.finished

    async def get_ledger(self):
        return tuple(
            Ledger(
                partition=partition,
                tasks=TaskLedger(
                    fed=stream.fed,
                    refilled=stream.refilled,
                    consumed=stream.consumed,
                    filtered=stream.filtered,
                    dropped={"stale": stream.dropped} if stream.dropped else {},
                    dead_lettered=stream.dead_lettered,
                    open=len(stream.entries),
                ),
                trajectories=TrajectoryLedger(
                    issued=stream.failed,
                    put=0,
                    duplicate=0,
                    lapsed=0,
                    failed={"reward_error": stream.failed} if stream.failed else {},
                    released={},
                    in_flight=0,
                ),
                trained_twice=len(self.trained) - len(set(self.trained)),
                commits=self.commit_number,
                ended_sequences=tuple(sorted(int(task_id) for task_id in stream.ended)),
            )
            for partition, stream in self.streams.items()
        )

    async def get_dead_letters(self, *, max_letters):
        letters = [
            DeadLetter(
                partition=partition,
                task_id=task_id,
                attempt=0,
                sequence=int(task_id),
                time=1.0,
                reasons=("reward_error",) * 2,
            )
            for partition, stream in self.streams.items()
            for task_id, how in stream.ended.items()
            if how == "dead_lettered"
        ]
        return tuple(letters[:max_letters])

    async def get_stats(self):
        status = ReplicaStatus(
            replica_id=ReplicaId("replica-a"),
            service="rollouter",
            policy_version=self.version,
            policy_digest="",
            busy_slots=1,
            max_slots=4,
            address="",
            state="serving",
        )
        return RunStats(
            partitions=tuple(
                PartitionStats(
                    partition=partition,
                    pending_members=2 * len(stream.entries),
                    in_flight_members=0,
                    open_groups=len(stream.entries),
                    ready_groups=0,
                    leased_groups=0,
                    payload_bytes=0,
                    held_for_groups=0,
                )
                for partition, stream in self.streams.items()
            ),
            policy_version=self.version,
            epoch=self.epoch,
            commit_number=self.commit_number,
            replicas=(ReplicaReport(status=status, age_seconds=1.0),),
            run_finished=self.finished,
        )


class FakeBackend:
    """Weights are one number that every batch changes in a way of its own."""

    def __init__(self):
        self.value = torch.zeros(3, dtype=torch.float64)
        self.steps_done = 0
        self.fail_at: int | None = None

    def step(self, batch):
        if self.fail_at == self.steps_done:
            raise KilledError("the process died in a step")
        for number, item in enumerate(batch):
            self.value = self.value * 1.01 + item.advantage * (number + 1) + float(item.row.token_ids.sum())
        self.steps_done += 1
        return StepMetrics(
            loss=1.0,
            grad_norm=1.0,
            learning_rate=0.1,
            clip_fraction=0.0,
            approx_kl=0.0,
            ratio_mean=1.0,
            ratio_max=1.0,
            entropy=0.5,
            num_rows=len(batch),
            num_tokens=sum(int(item.row.loss_mask.sum()) for item in batch),
            num_micro_batches=1,
        )

    def snapshot(self):
        return PolicyWeights(tensors={"weight": self.value.clone()}, tied={})

    def state(self):
        return BackendState(tensors={"model.weight": self.value.clone()}, numbers={"steps_done": self.steps_done})

    def load_state(self, state):
        self.value = state.tensors["model.weight"].clone()
        self.steps_done = state.numbers["steps_done"]

    def export(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weight.txt").write_text(str(self.value.tolist()))


class FakeShelf:
    """Remembers what was published."""

    def __init__(self):
        self.versions: list[int] = []
        self.manifests = []

    def publish(self, manifest, tensors):
        assert manifest.version not in self.versions
        self.versions.append(manifest.version)
        self.manifests.append(manifest)


def make_config(folder, **sections) -> RunConfig:
    """A small run over a made-up data file; `sections` replace keys, e.g. `trainer={"total_steps": 4}`."""
    values = {
        "run": {"name": "demo", "directory": str(folder)},
        "model": {"build": "tiny_qwen3", "hidden_size": 32, "max_context": 64},
        "data": {"source": "data.jsonl", "shuffle": False},
        "rollout": {"group_size": 2, "max_new_tokens": 8},
        "async": {"max_staleness": 1},
        "trainer": {"total_steps": 6, "groups_per_step": 2, "checkpoint_every": 2, "stall_seconds": 5.0},
    }
    for name, section in sections.items():
        key = name.rstrip("_")
        values[key] = {**values.get(key, {}), **section}
    return RunConfig.model_validate(values)


def make_rows(count=20) -> tuple[DataRow, ...]:
    return tuple(
        DataRow(
            messages=(Message(role="user", content=f"What is {index} + 1?"),),
            answer=str(index + 1),
            metadata_json="{}",
            origin=f"data.jsonl line {index + 1}",
        )
        for index in range(count)
    )


@dataclass
class Trainer:
    """One trainer process, as far as a test needs it."""

    loop: TrainingLoop
    backend: FakeBackend
    shelf: FakeShelf
    status: TrainerStatus
    link: QueueLink
    lines: list[str]
    directory: RunDirectory


def make_trainer(config, queue, *, rows=None, held_out=()) -> Trainer:
    """A new trainer process on the run directory that `config` names."""
    data = RunData(train=rows or make_rows(), validation=tuple(held_out), num_excluded=0)
    directory = RunDirectory.of(config)
    backend, shelf, lines = FakeBackend(), FakeShelf(), []
    link = QueueLink(queue, patience_seconds=5.0)
    status = TrainerStatus(run_id=RunId("demo"), total_steps=config.trainer.total_steps)
    versions = VersionFile(directory.version_file)
    parts = LoopParts(
        queue=link,
        backend=backend,
        thread=BackendThread(),
        publisher=Publisher(link, shelf, versions, run_id=RunId("demo")),
        versions=versions,
        checkpoints=CheckpointStore(directory.checkpoints, keep=config.trainer.keep_checkpoints),
        source=training_tasks(config, data),
        held_out=validation_tasks(config, data),
        run_directory=directory,
        status=status,
        announce=lines.append,
    )
    loop = TrainingLoop(parts, config=config, run_settings=run_settings(config))
    return Trainer(loop=loop, backend=backend, shelf=shelf, status=status, link=link, lines=lines, directory=directory)
