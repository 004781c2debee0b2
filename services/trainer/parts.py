"""What the training loop works with: ports and helpers, made in `server.py`, or in a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.trainer.backend.port import TrainerBackend
    from services.trainer.backend_thread import BackendThread
    from services.trainer.checkpoint import CheckpointStore
    from services.trainer.publishing import Publisher
    from services.trainer.queue_link import QueueLink
    from services.trainer.run_directory import RunDirectory
    from services.trainer.status import TrainerStatus
    from services.trainer.tasks import TaskSource
    from services.trainer.versions import VersionFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What the loop works with; made in `server.py`, or in a test."""

    queue: QueueLink
    """The queue."""
    backend: TrainerBackend
    """Model and optimiser."""
    thread: BackendThread
    """Where the backend runs."""
    publisher: Publisher
    """Policy versions."""
    versions: VersionFile
    """Numbers assigned, and the epoch that owns the run directory."""
    checkpoints: CheckpointStore
    """Checkpoints."""
    source: TaskSource
    """Training tasks."""
    held_out: TaskSource | None
    """Validation tasks; `None` turns validation off."""
    run_directory: RunDirectory
    """Files for people."""
    status: TrainerStatus
    """Told what goes on."""
    announce: Callable[[str], None]
    """Shows a line to people."""
