"""The root of the schema, and what follows from it."""

from __future__ import annotations

from pydantic import ConfigDict, Field, model_validator

from services.common.config.base import Section
from services.common.config.learning import (
    AlgorithmSection,
    AsyncSection,
    DataSection,
    ModelSection,
    TrainerSection,
    ValidationSection,
)
from services.common.config.serving import (
    EngineSection,
    QueueSection,
    RewardSection,
    RolloutSection,
    RunSection,
    TelemetrySection,
)

MAX_UNCOMMITTED_GROUPS = 100_000
"""Groups between two commits: what one commit may name, and how far back the queue knows what was trained on."""


class RunConfig(Section):
    """Everything a run needs to know; one file holds it."""

    model_config = ConfigDict(populate_by_name=True)

    run: RunSection = RunSection()
    """Name, place, seed."""
    model: ModelSection
    """The policy."""
    data: DataSection
    """The tasks."""
    rollout: RolloutSection = RolloutSection()
    """Replicas and sampling."""
    engine: EngineSection = EngineSection()
    """What generates."""
    reward: RewardSection = RewardSection()
    """What scores."""
    queue: QueueSection = QueueSection()
    """What carries."""
    async_: AsyncSection = Field(default=AsyncSection(), alias="async")
    """How far ahead."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """What is learnt from a group."""
    trainer: TrainerSection = TrainerSection()
    """How it is learnt."""
    validation: ValidationSection = ValidationSection()
    """How it is measured."""
    telemetry: TelemetrySection = TelemetrySection()
    """How it is seen."""

    @model_validator(mode="after")
    def _group_members(self) -> RunConfig:
        """A group must be able to hold the members that an advantage needs."""
        if self.algorithm.min_group_members > self.rollout.group_size:
            raise ValueError(
                f"algorithm.min_group_members is {self.algorithm.min_group_members} and rollout.group_size is "
                f"{self.rollout.group_size}; a group never has more members than its size"
            )
        return self

    @model_validator(mode="after")
    def _groups_between_commits(self) -> RunConfig:
        """What is trained on and not committed stays in the queue, whatever bounds the queue otherwise."""
        if self.uncommitted_groups > MAX_UNCOMMITTED_GROUPS:
            raise ValueError(
                f"trainer.checkpoint_every is {self.trainer.checkpoint_every} steps of trainer.groups_per_step = "
                f"{self.trainer.groups_per_step} groups; with async.updates_per_version = "
                f"{self.async_.updates_per_version} that leaves {self.uncommitted_groups} groups between two commits, "
                f"and the queue keeps at most {MAX_UNCOMMITTED_GROUPS}: lower trainer.checkpoint_every"
            )
        return self

    @property
    def uncommitted_groups(self) -> int:
        """Groups that are trained on between two commits: checkpoints are due at versions only."""
        updates = self.async_.updates_per_version
        steps = -(-self.trainer.checkpoint_every // updates) * updates
        return min(steps, self.trainer.total_steps) * self.trainer.groups_per_step

    @property
    def groups_per_version(self) -> int:
        """Groups consumed between two policy versions."""
        return self.trainer.groups_per_step * self.async_.updates_per_version

    @property
    def max_queue_size(self) -> int:
        """Ready groups held at most.

        The capacity rule admits (max_staleness + 1) x groups_per_version groups that are not consumed, so a bound of
        that size never holds back what the rule lets through.
        """
        return self.queue.max_queue_size or (self.async_.max_staleness + 1) * self.groups_per_version
