"""What a scorer is given, what it answers, and the shape that every scorer has."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.common.types import Message, ScorerInfo

MAX_PARTS = 64
"""Most named components of one reward."""


class ScorerError(Exception):
    """A scorer, or the data it was given, is broken; the score fails and is never a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One completion, ready to be scored."""

    text: str | None
    """What is scored: the completion, or what `reward.extract` found in it; None when the pattern found nothing."""
    answer: str
    """The reference answer; empty when the task has none."""
    metadata: dict[str, object]
    """The other fields of the dataset row."""
    messages: tuple[Message, ...]
    """The prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reward and what it consists of."""

    reward: float
    """The reward; a number that is not finite is refused."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components."""


class Scorer(Protocol):
    """A rule. Called in a worker process, one attempt at a time; raises when it cannot judge."""

    info: ScorerInfo
    """Name, version and what it does."""

    def __call__(self, attempt: Attempt) -> Verdict:
        """Judge one attempt. An answer of the policy that makes no sense is a low reward, not an error."""
        ...


def checked(verdict: Verdict) -> Verdict:
    """Return `verdict` with plain floats.

    Raises:
        ScorerError: a number is not finite, or there are too many parts.
    """
    if len(verdict.parts) > MAX_PARTS:
        raise ScorerError(f"the scorer named {len(verdict.parts)} parts of at most {MAX_PARTS}")
    reward = float(verdict.reward)
    parts = {str(name): float(value) for name, value in verdict.parts.items()}
    for name, value in (("reward", reward), *parts.items()):
        if not math.isfinite(value):
            raise ScorerError(f"the scorer returned {name} = {value}; a reward must be finite")
    return Verdict(reward=reward, parts=parts)


def binary(*, correct: bool) -> Verdict:
    """Give 1 for a correct and 0 for a wrong answer."""
    value = 1.0 if correct else 0.0
    return Verdict(reward=value, parts={"correct": value})
