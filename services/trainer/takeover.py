"""How a trainer begins: from nothing, or where the newest whole checkpoint stands, with the queue brought in line.

The newest whole checkpoint is restored, then CreateRun gives a new epoch. The checkpoint's commit is repeated, or, when
the queue's counter is neither that commit's nor the one before, Reconcile makes the checkpoint the truth. Last, what is
leased and not committed is released.

The number of the first version exceeds all that the version file, the checkpoint, the queue and the replicas know. A
version file that is lost while the run has begun leaves only the last three, which may all be too old, so the numbers
jump by more than can have been given out since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from services.common.errors import ReconcileRequiredError
from services.common.types import Partition

if TYPE_CHECKING:
    from services.common.types import RunSettings, RunState
    from services.trainer.backend.port import TrainerBackend
    from services.trainer.backend_thread import BackendThread
    from services.trainer.checkpoint import CheckpointState, CheckpointStore
    from services.trainer.queue_link import QueueLink
    from services.trainer.versions import VersionFile

LOST_FILE_GAP = 1_000_000
"""More versions than are assigned between two checkpoints, restarts included."""

_log = structlog.get_logger("headrace.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """How a trainer began."""

    run: RunState
    """What the queue said."""
    checkpoint: CheckpointState | None
    """The checkpoint it resumed from; `None` begins at step 0."""
    version_gap: int = 0
    """Numbers to leave out, since their file was lost."""

    @property
    def newest_version(self) -> int:
        """Largest policy version that anybody but the version file knows."""
        known = self.checkpoint.policy_version if self.checkpoint else -1
        return max(known, self.run.policy_version, self.run.replica_version) + self.version_gap

    @property
    def is_branch(self) -> bool:
        """Whether versions of an earlier trainer may exist, so that capacity counts from the next one."""
        return self.checkpoint is not None or not self.run.created


async def take_over(
    queue: QueueLink,
    backend: TrainerBackend,
    checkpoints: CheckpointStore,
    *,
    settings: RunSettings,
    thread: BackendThread,
    versions: VersionFile,
    has_begun: bool,
) -> Takeover:
    """Take the run over and restore the newest whole checkpoint.

    Args:
        queue: the queue; it carries the new epoch afterwards.
        backend: restored from the checkpoint.
        checkpoints: where to look for one.
        settings: the run's rules.
        thread: where the backend runs.
        versions: the file of assigned numbers, and of the epoch that owns the run directory.
        has_begun: whether the run directory shows a step.

    Raises:
        ReconcileRequiredError: there were commits or checkpoints, and no checkpoint that contains them is whole.
    """
    checkpoint = await thread.run(checkpoints.newest)
    if checkpoint is not None:
        await thread.run(backend.load_state, checkpoint.backend)
    elif checkpoints.damaged:
        raise ReconcileRequiredError(
            f"no checkpoint of this run is whole ({'; '.join(checkpoints.damaged)}); "
            "restore one, or remove the run directory to begin anew"
        )
    state = checkpoint.run if checkpoint else None
    gap = LOST_FILE_GAP if versions.is_missing and (has_begun or state is not None) else 0
    run = await queue.take_over(settings, epochs=versions)
    if run.finished:
        return Takeover(run=run, checkpoint=state)
    if gap:
        _log.warning("the file of policy versions is gone; numbers are left out to be sure of new ones", left_out=gap)
    if state is not None:
        await _settle(queue, run, state)
    elif run.commit_number:
        raise ReconcileRequiredError(
            f"the queue has {run.commit_number} commits of this run and there is no whole checkpoint; "
            "restore the run directory's checkpoints, or start a new run"
        )
    for partition in Partition:
        await queue.release(partition)
    return Takeover(run=run, checkpoint=state, version_gap=gap)


async def _settle(queue: QueueLink, run: RunState, state: CheckpointState) -> None:
    """Make the queue agree with the checkpoint."""
    if not run.created and run.commit_number in {state.commit_number - 1, state.commit_number}:
        try:
            await queue.commit(
                state.results,
                partition=Partition.TRAIN,
                commit_number=state.commit_number,
                policy_version=state.policy_version,
            )
        except ReconcileRequiredError:
            # The store lost the run since the takeover.
            pass
        else:
            return
    newest = max(state.policy_version, run.policy_version, run.replica_version)
    num_removed = await queue.reconcile(state, policy_version=newest)
    _log.warning(
        "queue reconciled with the checkpoint",
        queue_commit=run.commit_number,
        checkpoint_commit=state.commit_number,
        run_was_lost=run.created,
        tasks_removed=num_removed,
    )
