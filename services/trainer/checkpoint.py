"""Checkpoints: whole or not there, and everything that an exact resume needs.

A checkpoint is a folder `step-00000010-epoch-3` with `tensors.safetensors` (model, optimiser, random generators),
`state.json` (where the run stands) and `manifest.json` (length and digest of the other two). It is written beside its
place, forced to disk and renamed, the manifest last: what a crash left half written has no manifest or does not match
it, and is skipped. Nothing is pickled. A trainer that was replaced and does not know it yet writes under its own, older
epoch: it can neither overwrite nor outdo the checkpoints of its successor. A write that fails, as on a full disk,
leaves the checkpoints before it as they are.

Example:
    store = CheckpointStore(run.checkpoints, keep=2)
    store.save(backend.state(), state)
    found = store.newest()
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.common.errors import StorageError
from services.common.types import DropReason, GroupOutcome, GroupResult, TaskId
from services.trainer.backend.port import BackendState
from services.trainer.run_directory import sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TENSORS = "tensors.safetensors"
_STATE = "state.json"
_MANIFEST = "manifest.json"
_STAGING_PREFIX = ".staging-"
_NAME = re.compile(r"step-(?P<step>\d+)-epoch-(?P<epoch>\d+)")
_FORMAT = 1

_log = structlog.get_logger("headrace.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Where a run stands at a checkpoint, apart from the weights."""

    step: int
    """Optimiser steps done."""
    next_sequence: int
    """Cursor of the dataset: the next sequence number to feed."""
    commit_number: int
    """Number of the commit that goes with this checkpoint."""
    results: tuple[GroupResult, ...]
    """What that commit says: one result per group since the commit before."""
    first_open_sequence: int
    """Every sequence number below it has ended."""
    ended_sequences: tuple[int, ...]
    """Numbers at or above it that have ended too."""
    num_consumed: int
    """Groups consumed so far, those in `results` included."""
    num_filtered: int
    """Groups filtered so far."""
    num_dropped: int
    """Task attempts that the queue had dropped or given up by then."""
    policy_version: int
    """Newest policy version assigned."""
    epoch: int
    """Epoch of the trainer that wrote it."""
    num_tokens: int
    """Sampled tokens trained on so far."""
    seconds: float
    """Wall time trained so far, over all restarts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A whole checkpoint, as it was read."""

    backend: BackendState
    """Model, optimiser and random generators."""
    run: CheckpointState
    """Where the run stood."""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        """Use a folder; it is made when the first checkpoint is written.

        Args:
            folder: where checkpoints lie.
            keep: newest ones that stay, >= 1.
        """
        self._folder = folder
        self._keep = keep
        self.damaged: tuple[str, ...] = ()
        """What `newest` skipped, each with what is wrong with it."""

    def save(self, backend: BackendState, run: CheckpointState, *, check: Callable[[], None]) -> Path:
        """Write a checkpoint and remove the oldest beyond the bound. Blocks: call it from a thread.

        Args:
            backend: model, optimiser and random generators.
            run: where the run stands.
            check: raises when this trainer was replaced; asked before the checkpoint becomes visible.

        Returns:
            The checkpoint's folder.

        Raises:
            StorageError: it cannot be written; the ones before it stay.
        """
        target = self._folder / f"step-{run.step:08d}-epoch-{run.epoch}"
        staging = self._folder / f"{_STAGING_PREFIX}{target.name}"
        check()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(staging, ignore_errors=True)
            _fill(staging, backend, run)
            check()
            if target.exists():
                # Only a damaged one can be in the way: a whole one would have been resumed from.
                shutil.rmtree(target)
            staging.rename(target)
            sync_folder(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            # A successor removes what its predecessor was writing.
            check()
            raise StorageError(
                f"the checkpoint of step {run.step} cannot be written to {self._folder} ({error}); the ones before it "
                "are unharmed: make room, and start again with run.resume = true"
            ) from error
        self._prune(run.epoch)
        return target

    def remove_debris(self, epoch: int) -> None:
        """Remove what trainers of older epochs were writing when they died or were replaced.

        Args:
            epoch: the caller's epoch.
        """
        self._remove_stagings(epoch - 1)

    def newest(self) -> Checkpoint | None:
        """Read the newest whole checkpoint; damaged ones are skipped and said so. Blocks: call it from a thread."""
        self.damaged = ()
        for folder in self._found():
            problem = _problem(folder)
            if problem is None:
                return _read(folder)
            self.damaged += (f"{folder.name}: {problem}",)
            _log.warning("checkpoint skipped", checkpoint=str(folder), problem=problem)
        return None

    def _found(self) -> list[Path]:
        """Folders that look like checkpoints, newest first."""
        if not self._folder.is_dir():
            return []
        return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), key=_age, reverse=True)

    def _prune(self, epoch: int) -> None:
        """Remove what is older than the newest ones, and what crashes of this epoch or older ones left behind."""
        for folder in self._found()[self._keep :]:
            shutil.rmtree(folder, ignore_errors=True)
        self._remove_stagings(epoch)

    def _remove_stagings(self, epoch: int) -> None:
        """Remove half-written checkpoints of an epoch and older ones."""
        for folder in self._folder.glob(f"{_STAGING_PREFIX}*"):
            if _age(folder)[0] <= epoch:
                shutil.rmtree(folder, ignore_errors=True)


def _fill(staging: Path, backend: BackendState, run: CheckpointState) -> None:
    """Write the files of a checkpoint into a new folder, and force them to disk."""
    staging.mkdir()
    save_file(backend.tensors, staging / _TENSORS)
    state = {"format": _FORMAT, "backend": backend.numbers, "run": asdict(run)}
    (staging / _STATE).write_text(json.dumps(state), encoding="utf-8")
    files = {name: _describe(staging / name) for name in (_TENSORS, _STATE)}
    (staging / _MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
    for name in (_TENSORS, _STATE, _MANIFEST):
        _sync_file(staging / name)
    sync_folder(staging)


def _age(folder: Path) -> tuple[int, int]:
    """Epoch and step of a checkpoint's name; (0, 0) of any other."""
    match = _NAME.fullmatch(folder.name.removeprefix(_STAGING_PREFIX))
    return (int(match["epoch"]), int(match["step"])) if match else (0, 0)


def _read(folder: Path) -> Checkpoint:
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    backend = BackendState(tensors=load_file(folder / _TENSORS), numbers=state["backend"])
    return Checkpoint(backend=backend, run=_state_from_json(state["run"]))


def _state_from_json(values: dict[str, Any]) -> CheckpointState:
    """Rebuild the state from JSON."""
    results = tuple(
        GroupResult(
            task_id=TaskId(item["task_id"]),
            attempt=item["attempt"],
            outcome=GroupOutcome(item["outcome"]),
            drop_reason=DropReason(item["drop_reason"]) if item["drop_reason"] else None,
            # Checkpoints written before sequences were noted lack it.
            sequence=item.get("sequence"),
        )
        for item in values["results"]
    )
    return CheckpointState(**{**values, "results": results, "ended_sequences": tuple(values["ended_sequences"])})


def _problem(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint, or nothing."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            if _describe(folder / name) != expected:
                return f"{name} does not match its digest"
        if set(files) != {_TENSORS, _STATE}:
            return f"its manifest names {', '.join(sorted(files))}"
        found = json.loads((folder / _STATE).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return f"it is not whole ({error})"
    return None if found == _FORMAT else f"it has format {found}, this version reads {_FORMAT}"


def _describe(path: Path) -> dict[str, Any]:
    """Length and digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return {"bytes": path.stat().st_size, "blake2b": digest}


def _sync_file(path: Path) -> None:
    """Force a file's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
