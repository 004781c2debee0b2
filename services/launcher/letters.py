"""Words for tasks that were given up: how many, and of the newest ones what their members failed of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from services.common.types import DeadLetter, Partition, TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SHOWN = 3
"""Dead letters that are shown at most."""


def letter_from_values(values: Mapping[str, Any]) -> DeadLetter:
    """Read an entry of `ledger.json`."""
    return DeadLetter(
        partition=Partition(values["partition"]),
        task_id=TaskId(values["task_id"]),
        attempt=values["attempt"],
        sequence=values["sequence"],
        time=values["time"],
        reasons=tuple(values["reasons"]),
    )


def letter_lines(count: int, letters: Sequence[DeadLetter]) -> list[str]:
    """Say how many tasks were given up, and why the newest ones; nothing when there are none.

    Example:
        2 tasks were dead-lettered; the newest:
          train task 00000007 (attempt 0): engine_error x 3, lapsed
    """
    if not count:
        return []
    shown = letters[:SHOWN]
    head = f"{count:,} task{'s were' if count > 1 else ' was'} dead-lettered"
    return [f"{head}; the newest:" if shown else head, *map(_line, shown)]


def _line(letter: DeadLetter) -> str:
    return f"  {letter.partition} task {letter.task_id} (attempt {letter.attempt}): {_counted(letter.reasons)}"


def _counted(reasons: Iterable[str]) -> str:
    return ", ".join(name if count == 1 else f"{name} x {count}" for name, count in Counter(reasons).items())
