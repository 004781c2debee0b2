"""Which sequence numbers have ended: one number below which all have, and the few above it that have too.

Owns the trainer's own account of what has ended, apart from the queue's, so that a store that forgot something can be
found out and told. What was trained on enters at its step; what the queue dropped or gave up enters with each
checkpoint, from the queue's account. So its size is bounded by how far groups overtake each other and by what is
dropped between two checkpoints, not by the length of the run.

Example:
    frontier = Frontier()
    frontier.end(1)
    frontier.end(0)
    assert frontier.first_open == 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Frontier:
    """The set of ended sequence numbers, stored as a prefix and holes."""

    def __init__(self, first_open: int = 0, ended: Iterable[int] = ()) -> None:
        """Start with what a checkpoint says.

        Args:
            first_open: every number below it has ended.
            ended: numbers at or above it that have ended too.
        """
        self._first_open = first_open
        self._ended = {sequence for sequence in ended if sequence >= first_open}
        self._advance()

    @property
    def first_open(self) -> int:
        """Smallest sequence number that has not ended."""
        return self._first_open

    @property
    def ended(self) -> tuple[int, ...]:
        """Ended numbers above `first_open`, in order."""
        return tuple(sorted(self._ended))

    def end(self, sequence: int) -> None:
        """Note that `sequence` has ended; a second time changes nothing."""
        if sequence >= self._first_open:
            self._ended.add(sequence)
            self._advance()

    def merge(self, first_open: int, ended: Iterable[int]) -> None:
        """Note all that another account says has ended.

        Args:
            first_open: every number below it has ended.
            ended: numbers at or above it that have ended too.
        """
        self._first_open = max(self._first_open, first_open)
        self._ended = {sequence for sequence in self._ended.union(ended) if sequence >= self._first_open}
        self._advance()

    def __contains__(self, sequence: int) -> bool:
        """Whether `sequence` has ended."""
        return sequence < self._first_open or sequence in self._ended

    def _advance(self) -> None:
        while self._first_open in self._ended:
            self._ended.remove(self._first_open)
            self._first_open += 1
