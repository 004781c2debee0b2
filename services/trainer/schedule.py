"""Learning-rate schedules as plain functions of the step number: nothing to save, nothing to restore.

Warm-up rises linearly so that step `warmup_steps` is the first at the full rate; afterwards `constant` stays, `linear`
and `cosine` fall to `min_ratio` of it at `total_steps`. Cosine: Loshchilov and Hutter 2017 (arXiv:1608.03983), eq. 5
without restarts.
"""

from __future__ import annotations

import math

from services.common.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate_at(
    step: int, *, base: float, schedule: str, warmup_steps: int = 0, total_steps: int = 0, min_ratio: float = 0.0
) -> float:
    """Give the learning rate of one optimiser step.

    Args:
        step: number of the step, counted from 0.
        base: the full rate.
        schedule: `constant`, `linear` or `cosine`.
        warmup_steps: steps that rise from `base / (warmup_steps + 1)`; 0 starts at the full rate.
        total_steps: where a falling schedule reaches its end; later steps stay there. Not used by `constant`.
        min_ratio: what is left of `base` at the end, in [0, 1].

    Returns:
        The rate, >= 0.

    Raises:
        ConfigError: the schedule has no such name.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"trainer.schedule is {schedule!r}; use one of {', '.join(SCHEDULES)}")
    if step < warmup_steps:
        return base * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return base
    span = max(1, total_steps - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / span)
    share = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return base * (min_ratio + (1.0 - min_ratio) * share)
