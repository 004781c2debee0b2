"""Quotas: what one run may take of a queue that serves several. They belong to the service, not to a run's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.common.types import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What the queue service grants; 0 is no bound."""

    max_runs: int = 0
    """Runs that the server holds, finished ones included."""
    bytes_per_run: int = 0
    """Payload bytes of one run at which no new group begins, but for a batch that the trainer waits for; at twice as
    many no payload is taken."""
    open_tasks_per_run: int = 0
    """Tasks of one run and partition that are in the queue and not leased by the trainer."""
    keep_finished_seconds: float = 0.0
    """Time after its last call from which on a finished run is deleted."""

    def refusal(self, settings: RunSettings, *, num_runs: int) -> str:
        """Say why a new run with these rules cannot be had; empty when it can.

        Args:
            settings: the rules it asks for.
            num_runs: runs that are there already.
        """
        if self.max_runs and num_runs >= self.max_runs:
            return (
                f"the queue holds {num_runs} of {self.max_runs} runs; delete finished ones (headrace runs, "
                "headrace delete RUN) or raise queue.max_runs"
            )
        if self.bytes_per_run and settings.max_queue_bytes > self.bytes_per_run:
            return (
                f"max_queue_bytes is {settings.max_queue_bytes}, and the queue grants a run {self.bytes_per_run}; "
                "lower queue.max_queue_bytes or raise queue.quota_bytes of the queue service"
            )
        if self.open_tasks_per_run and settings.groups_per_version > self.open_tasks_per_run:
            return (
                f"groups_per_version is {settings.groups_per_version}, and the queue grants a run "
                f"{self.open_tasks_per_run} open tasks, fewer than one version needs; lower trainer.groups_per_step or "
                "raise queue.quota_open_tasks of the queue service"
            )
        return ""
