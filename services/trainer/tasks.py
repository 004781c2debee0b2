"""Turns dataset rows into tasks: sequence number in, task out, the same one every time.

A task's content must not depend on anything but configuration and sequence number, since the queue refuses a known id
that comes with other content.

Example: `training_tasks(config, data).task(12).task_id == "00000012"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.types import Partition, SamplingParams, ScoringSpec, Task, TaskId
from services.trainer.dataset import RowOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.config import RunConfig
    from services.trainer.dataset import DataRow, RunData


class TaskSource:
    """The tasks of one partition."""

    def __init__(
        self,
        rows: Sequence[DataRow],
        *,
        partition: Partition,
        order: RowOrder,
        sampling: SamplingParams,
        group_size: int,
        seed: int,
        limit: int | None = None,
    ) -> None:
        """Fix what every task is made of.

        Args:
            rows: the dataset, at least one row.
            partition: the stream.
            order: which row a sequence number means.
            sampling: how members are sampled.
            group_size: members per task.
            seed: the run's seed.
            limit: number of tasks there are; `None` means without end.
        """
        self._rows = rows
        self._partition = partition
        self._order = order
        self._sampling = sampling
        self._group_size = group_size
        self._seed = seed
        self.limit = limit

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return len(self._rows)

    def row(self, sequence: int) -> DataRow:
        """The row that a sequence number stands for."""
        return self._rows[self._order.row(sequence)]

    def task(self, sequence: int) -> Task:
        """The task with a sequence number."""
        row = self.row(sequence)
        return Task(
            task_id=TaskId(f"{sequence:08d}"),
            partition=self._partition,
            sequence=sequence,
            messages=row.messages,
            group_size=self._group_size,
            sampling=self._sampling,
            scoring=ScoringSpec(answer=row.answer, metadata_json=row.metadata_json),
            seed=self._seed,
        )


def training_tasks(config: RunConfig, data: RunData) -> TaskSource:
    """The training tasks of a run."""
    epochs = config.data.max_epochs
    return TaskSource(
        data.train,
        partition=Partition.TRAIN,
        order=RowOrder(len(data.train), seed=config.run.seed, shuffle=config.data.shuffle),
        sampling=_sampling(config, temperature=config.rollout.temperature),
        group_size=config.rollout.group_size,
        seed=config.run.seed,
        limit=epochs * len(data.train) if epochs else None,
    )


def validation_tasks(config: RunConfig, data: RunData) -> TaskSource | None:
    """The held-out tasks of a run; `None` when validation is off."""
    if not data.validation:
        return None
    return TaskSource(
        data.validation,
        partition=Partition.VALIDATION,
        order=RowOrder(len(data.validation), seed=config.run.seed, shuffle=False),
        sampling=_sampling(config, temperature=config.validation.temperature),
        group_size=config.validation.group_size,
        seed=config.run.seed,
    )


def _sampling(config: RunConfig, *, temperature: float) -> SamplingParams:
    """Sampling parameters of `[rollout]` at a temperature."""
    rollout = config.rollout
    return SamplingParams(
        max_new_tokens=rollout.max_new_tokens,
        temperature=temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        stop=rollout.stop,
    )
