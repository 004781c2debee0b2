"""What was trained on since when: the trainer's side of "nothing lost, nothing twice".

Owns the results of the groups that no commit has made final yet, the frontier of ended sequence numbers, and the totals
of the run. Turns them into the `CheckpointState` of a checkpoint; a commit takes its results from that state and never
from memory, so that repeating it after a crash says the same.

    settled --note()--> pending --state() + a written checkpoint--> settle() --> settled
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.types import GroupOutcome, GroupResult
from services.trainer.checkpoint import CheckpointState
from services.trainer.frontier import Frontier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.common.types import Group


class Account:
    """Counts groups, from the beginning of the run or from a checkpoint."""

    def __init__(self, state: CheckpointState | None = None) -> None:
        """Take over what a checkpoint says; `None` begins a run."""
        self.step = state.step if state else 0
        """Optimiser steps done."""
        self.commit_number = state.commit_number if state else 0
        """Number of the newest commit whose checkpoint is on disk."""
        self.num_tokens = state.num_tokens if state else 0
        """Sampled tokens trained on."""
        self.num_consumed = state.num_consumed if state else 0
        """Groups consumed."""
        self.frontier = Frontier(state.first_open_sequence, state.ended_sequences) if state else Frontier()
        """Which sequence numbers have ended."""
        self._num_filtered = state.num_filtered if state else 0
        self._pending: list[GroupResult] = []

    @property
    def has_pending(self) -> bool:
        """Whether a step was done that no checkpoint contains."""
        return bool(self._pending)

    def note_step(self, groups: list[Group], *, num_tokens: int) -> None:
        """Enter the groups of a step that was done."""
        for group in groups:
            self._pending.append(
                GroupResult(
                    task_id=group.task_id,
                    attempt=group.attempt,
                    outcome=GroupOutcome.CONSUMED,
                    sequence=group.sequence,
                )
            )
            self.frontier.end(group.sequence)
        self.step += 1
        self.num_tokens += num_tokens
        self.num_consumed += len(groups)

    def note_ended(self, first_open: int, ended: Iterable[int]) -> None:
        """Enter what the queue says has ended: also tasks that were dropped or given up and never came to a step.

        Args:
            first_open: every number below it has ended.
            ended: numbers at or above it that have ended too.
        """
        self.frontier.merge(first_open, ended)

    def state(
        self, *, next_sequence: int, num_dropped: int, policy_version: int, epoch: int, seconds: float
    ) -> CheckpointState:
        """Say where the run stands, with the number of the commit that is to follow."""
        return CheckpointState(
            step=self.step,
            next_sequence=next_sequence,
            commit_number=self.commit_number + 1,
            results=tuple(self._pending),
            first_open_sequence=self.frontier.first_open,
            ended_sequences=self.frontier.ended,
            num_consumed=self.num_consumed,
            num_filtered=self._num_filtered,
            num_dropped=num_dropped,
            policy_version=policy_version,
            epoch=epoch,
            num_tokens=self.num_tokens,
            seconds=seconds,
        )

    def settle(self, state: CheckpointState) -> None:
        """Note that the checkpoint with `state` is on disk: its results are its commit's business now."""
        self._pending = self._pending[len(state.results) :]
        self.commit_number = state.commit_number
