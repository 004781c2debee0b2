"""The run directory: where each file of a run lies, and how it is written.

Owns the names and the manner: lines are appended whole and flushed, single files appear by a rename. Readers of
`metrics.jsonl` take the last line of a step with the largest epoch, since steps that a crash undid are done and written
again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.common.errors import StorageError
from services.trainer.export import replace_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from services.common.config import RunConfig


class RunDirectory:
    """Paths of a run and writers for its files.

    Example: `RunDirectory.of(config).append_metrics({"step": 1, "loss": 0.2})`.
    """

    def __init__(self, root: Path) -> None:
        """Make the folder if it is missing.

        Args:
            root: the run directory.
        """
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, config: RunConfig) -> RunDirectory:
        """The directory that a configuration names."""
        return cls(Path(config.run.directory) / config.run.name)

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def final(self) -> Path:
        """Folder of the exported model."""
        return self.root / "final"

    @property
    def has_metrics(self) -> bool:
        """Whether a step was ever reported."""
        return (self.root / "metrics.jsonl").exists()

    @property
    def version_file(self) -> Path:
        """File of the newest policy version."""
        return self.root / "version.json"

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """Add one step's figures to `metrics.jsonl`."""
        self._append("metrics.jsonl", values)

    def append_sample(self, values: Mapping[str, Any]) -> None:
        """Add one trajectory to `samples.jsonl`."""
        self._append("samples.jsonl", values)

    def append_validation(self, values: Mapping[str, Any]) -> None:
        """Add one measurement to `validation.jsonl`."""
        self._append("validation.jsonl", values)

    def validations(self) -> list[dict[str, Any]]:
        """The line of each measured step in `validation.jsonl` that counts, in order of step."""
        return _newest_by_step(read_lines(self.root / "validation.jsonl"))

    def steps(self) -> list[dict[str, Any]]:
        """The line of each step in `metrics.jsonl` that counts, in order of step."""
        return _newest_by_step(read_lines(self.root / "metrics.jsonl"))

    def replace_final(self, export: Callable[[Path], None], *, check: Callable[[], None]) -> None:
        """Put the exported model in its place. Blocks: call it from a thread.

        Args:
            export: writes it into a folder that does not exist.
            check: raises when this trainer was replaced; asked before anything is replaced.

        Raises:
            StorageError: it cannot be written; what was there before stays.
        """

        def write(folder: Path) -> None:
            export(folder)
            check()

        try:
            replace_folder(self.final, write)
        except OSError as error:
            # A successor removes what its predecessor was writing.
            check()
            raise StorageError(
                f"the model cannot be written to {self.final} ({error}); make room, and start again with "
                "run.resume = true"
            ) from error

    def write_ledger(self, values: Mapping[str, Any]) -> None:
        """Write `ledger.json`."""
        write_durably(self.root / "ledger.json", json.dumps(values, indent=2) + "\n")

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        write_durably(self.root / "summary.json", json.dumps(values, indent=2) + "\n")

    def _append(self, name: str, values: Mapping[str, Any]) -> None:
        path = self.root / name
        text = json.dumps(values) + "\n"
        # A crash may have left half a line; a new one must not be glued to it.
        if path.exists() and not _ends_in_newline(path):
            text = "\n" + text
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def _newest_by_step(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep one line per step, the last one of the largest epoch, in order of step."""
    newest: dict[int, dict[str, Any]] = {}
    for entry in entries:
        known = newest.get(entry["step"])
        if known is None or entry["epoch"] >= known["epoch"]:
            newest[entry["step"]] = entry
    return [newest[step] for step in sorted(newest)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a line that a crash cut off is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def write_durably(path: Path, text: str) -> None:
    """Replace a file as a whole; it is on disk when this returns."""
    staging = path.with_name(f".{path.name}.new")
    with staging.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk, so that a rename in it survives a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
