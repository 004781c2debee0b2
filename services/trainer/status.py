"""Where the trainer stands, for whoever asks: one small mutable record that the loop writes and others read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from services.common.types import TrainerReport
from services.trainer.versions import NO_VERSION

if TYPE_CHECKING:
    from services.common.types import RunId


class TrainerState(StrEnum):
    """What the trainer is doing.

    starting -> validating -> waiting -> training -> publishing -> waiting ... -> finished | stopped | failed
    """

    STARTING = "starting"
    """It loads the model and takes the run over."""
    VALIDATING = "validating"
    """It measures held-out tasks."""
    WAITING = "waiting"
    """It waits for groups."""
    TRAINING = "training"
    """An optimiser step is running."""
    PUBLISHING = "publishing"
    """It assigns a version, or writes a checkpoint."""
    FINISHED = "finished"
    """The run is done."""
    STOPPED = "stopped"
    """It was asked to stop; the run can be resumed."""
    FAILED = "failed"
    """It ended with an error."""


@dataclass(slots=True, kw_only=True)
class TrainerStatus:
    """The trainer's present state."""

    run_id: RunId
    """The run."""
    total_steps: int
    """Optimiser steps wanted."""
    epoch: int = 0
    """Epoch of this trainer; 0 before it took the run over."""
    step: int = 0
    """Optimiser steps done."""
    policy_version: int = NO_VERSION
    """Newest assigned policy version."""
    policy_digest: str = ""
    """Digest of the newest published one."""
    state: TrainerState = TrainerState.STARTING
    """What it is doing."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures of the newest step by name."""

    def report(self) -> TrainerReport:
        """The present state as a value."""
        return TrainerReport(
            run_id=self.run_id,
            epoch=self.epoch,
            step=self.step,
            total_steps=self.total_steps,
            policy_version=self.policy_version,
            state=self.state.value,
            metrics=dict(self.metrics),
        )
