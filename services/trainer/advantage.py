"""Advantages: how much better a trajectory was than the others of its group.

Owns the formulas and nothing else: numbers in, numbers out. Guarantees that a group without a difference in reward
gives exactly 0 for every member, whatever rounding its rewards carry, and that no advantage overflows float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.common.errors import ConfigError, InvalidInputError
from services.common.types import MAX_ABS_REWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

ESTIMATORS = ("grpo",)

STD_EPSILON = 1e-6
"""Added to the standard deviation before dividing, as in TRL and verl."""
EQUAL_TOLERANCE = 1e-6
"""Rewards whose spread is within this share of their size are equal: what is left is rounding, not signal."""


def grpo_advantages(rewards: Sequence[float], *, norm_by_std: bool = True) -> list[float]:
    """Compare each member of one group with the group's mean.

    `A_i = (r_i - mean(r)) / (std(r) + 1e-6)`: Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), section 4.1.2, with
    the sample standard deviation (n - 1), as verl and TRL compute it. Without the division: Liu et al. 2025, Dr. GRPO
    (arXiv:2503.20783), section 3.2.

    Args:
        rewards: one per member, within `MAX_ABS_REWARD` of 0; groups may have any size.
        norm_by_std: whether to divide by the group's standard deviation.

    Returns:
        One advantage per member, in the same order; all 0 for a group of one and for equal rewards.

    Raises:
        InvalidInputError: a reward is no number or too large.
    """
    for index, reward in enumerate(rewards):
        # The rollouter refuses such a reward; here it would end as a weight that is no number. NaN fails the test too.
        if not abs(reward) <= MAX_ABS_REWARD:
            raise InvalidInputError(
                f"reward {index} of the group is {reward:g}; rewards lie between {-MAX_ABS_REWARD:g} and "
                f"{MAX_ABS_REWARD:g}"
            )
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not norm_by_std:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (std + STD_EPSILON) for value in centred]


def has_signal(rewards: Sequence[float]) -> bool:
    """Tell whether the rewards of a group differ by more than rounding, so that a step can learn from it."""
    if len(rewards) < 2:
        return False
    size = max(abs(reward) for reward in rewards)
    return max(rewards) - min(rewards) > EQUAL_TOLERANCE * max(1.0, size)


def group_advantages(
    groups: Sequence[Sequence[float]], *, estimator: str = "grpo", norm_by_std: bool = True
) -> list[list[float]]:
    """Compute the advantages of a batch of groups.

    Args:
        groups: the rewards of each group.
        estimator: `algorithm.advantage`.
        norm_by_std: `algorithm.norm_by_std`.

    Returns:
        One list per group, in the same order.

    Raises:
        ConfigError: the estimator has no such name.
        InvalidInputError: a reward is no number or too large.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"algorithm.advantage is {estimator!r}; use one of {', '.join(ESTIMATORS)}")
    return [grpo_advantages(rewards, norm_by_std=norm_by_std) for rewards in groups]
