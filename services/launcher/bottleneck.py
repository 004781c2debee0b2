"""Who holds the run up, in one sentence with the key to change.

Advice goes by what was measured: how long each side waited, and what that leaves of this machine's cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.common.config import RunConfig

_MUCH = 0.5
_LITTLE = 0.2
_SPARE_CORES = 0.5
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Who computes on this machine's cores."""

    count: int
    """Cores that this process may use."""
    trainer_threads: int
    """Compute threads of the trainer; 0 when it computes on a GPU."""
    rollouter_threads: int
    """Compute threads of all rollouters together; 0 when they compute on a GPU."""
    replicas: int
    """Rollouters."""

    def are_taken(self, *, trainer_wait_share: float, rollouter_wait_share: float) -> bool:
        """Whether the two sides leave no core to anything that could be added.

        Args:
            trainer_wait_share: share of its time that the trainer waited.
            rollouter_wait_share: share of its time that the average rollouter waited.
        """
        busy = self.trainer_threads * (1 - trainer_wait_share) + self.rollouter_threads * (1 - rollouter_wait_share)
        return busy > self.count - _SPARE_CORES

    def __str__(self) -> str:
        """The shares, for a sentence: `1 trainer thread and 2 rollouter threads on 2 cores`."""
        parts = [
            f"{number} {name} thread{'s' if number > 1 else ''}"
            for name, number in (("trainer", self.trainer_threads), ("rollouter", self.rollouter_threads))
            if number
        ]
        return f"{' and '.join(parts)} on {self.count} core{'s' if self.count > 1 else ''}"


def cores_of(config: RunConfig) -> Cores:
    """Say who will compute on this machine's cores."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    replicas = config.rollout.replicas

    def threads(device: str, wanted: int) -> int:
        has_gpu = device not in {"auto", "cpu"} or (device == "auto" and any(path.exists() for path in _GPU_DEVICES))
        return 0 if has_gpu else wanted or count

    return Cores(
        count=count,
        trainer_threads=threads(config.trainer.device, config.trainer.threads),
        rollouter_threads=replicas * threads(config.engine.device, config.engine.threads),
        replicas=replicas,
    )


def advise(*, trainer_wait_share: float | None, rollouter_wait_share: float | None, cores: Cores | None = None) -> str:
    """Say which side is the bottleneck.

    Args:
        trainer_wait_share: share of its time that the trainer waited for groups, in [0, 1]; None when unknown.
        rollouter_wait_share: share of its time that the average rollouter had nothing to do; None when unknown.
        cores: who computes on this machine; None when the run goes on elsewhere, or is over.
    """
    if trainer_wait_share is None:
        return "Not enough was measured to name a bottleneck."
    both = f"the trainer waited {trainer_wait_share:.0%} of its time"
    if rollouter_wait_share is not None:
        both = f"{both}, the rollouters {rollouter_wait_share:.0%} of theirs"
        if cores and cores.are_taken(trainer_wait_share=trainer_wait_share, rollouter_wait_share=rollouter_wait_share):
            return (
                f"The cores of this machine are the bottleneck ({both}; {cores}): more threads or replicas would only "
                "share them; more cores, or a GPU, are what helps."
            )
    rollouters_wait_much = rollouter_wait_share is not None and rollouter_wait_share > _MUCH
    if trainer_wait_share > _MUCH:
        if rollouters_wait_much:
            return (
                f"Both sides wait for each other ({both}): raise async.max_staleness, or async.mode from sync "
                "towards fully_async, so that generation may run further ahead."
            )
        return (
            f"The rollouters are the bottleneck ({both}): raise rollout.replicas or engine.max_slots, "
            "or lower rollout.max_new_tokens."
        )
    if rollouters_wait_much:
        return f"The trainer is the bottleneck ({both}): {_for_the_trainer(cores)}."
    if trainer_wait_share < _LITTLE and (rollouter_wait_share is None or rollouter_wait_share < _LITTLE):
        return f"Both sides are busy ({both}); more hardware is the only lever."
    return f"No side holds the other up for long ({both})."


def _for_the_trainer(cores: Cores | None) -> str:
    """What makes the trainer faster, and what the rollouters do not need."""
    advice = "a faster trainer.device helps most"
    if cores and 0 < cores.trainer_threads < cores.count:
        advice = f"{advice}, more trainer.threads may help ({cores})"
    if cores and cores.replicas > 1:
        advice = f"{advice}; fewer rollout.replicas would do"
    return advice
