"""The folder of a run: made once, refused when it exists, taken up again on resume.

Holds `config.toml` (resolved, without secrets), `run_id`, `logs/`, `redis/` and what the services write. A lock on the
folder keeps a second launcher out of a run that is still going on.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from services.common import run_folder
from services.common.errors import ConfigError

if TYPE_CHECKING:
    from services.common.config import RunConfig

_SUFFIX_BYTES = 3
_MAX_NAME_LENGTH = 64
_METRICS_TAIL_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunDirectory:
    """An open run directory; `close` gives it up."""

    path: Path
    """The folder, absolute."""
    run_id: str
    """Id of the run in the queue: the name and a random suffix, kept over resumes."""
    created: bool
    """Whether this call made it; only then may it be discarded."""
    lock: IO[str]
    """Held while the run is ours."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def logs(self) -> Path:
        """Folder of the services' logs."""
        return self.path / "logs"

    @property
    def redis(self) -> Path:
        """Folder of the embedded Redis."""
        return self.path / "redis"

    def close(self) -> None:
        """Let others have the directory."""
        self.lock.close()

    def discard(self) -> None:
        """Remove a directory that this call made, as if it had never been; one that was resumed stays."""
        self.close()
        if self.created:
            shutil.rmtree(self.path)


def open_run_directory(config: RunConfig, config_path: Path) -> RunDirectory:
    """Make the run's folder, or take it up again when `run.resume` is set.

    A run without a name takes the config file's, with a number: `arithmetic-1`, `arithmetic-2`, ... Resumed without a
    name, it is the newest of them.

    Raises:
        ConfigError: it exists and `run.resume` is not set, it does not exist and `run.resume` is, or it is in use.
    """
    path = planned_path(config, config_path)
    return _resumed(path) if config.run.resume else _made(path)


def planned_path(config: RunConfig, config_path: Path) -> Path:
    """The folder that the run would get now.

    Raises:
        ConfigError: `run.resume` is set without a name, and there is no run of that config file.
    """
    parent = Path(config.run.directory).absolute()
    if "name" in config.run.model_fields_set:
        return parent / config.run.name
    return _numbered(parent, _stem(config_path), newest=config.run.resume)


def read_run_id(path: Path) -> str:
    """Read the run id of a run directory.

    Raises:
        ConfigError: it is no run directory.
    """
    try:
        return run_folder.read_run_id(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} is no run directory; give one that `headrace run` made, such as runs/NAME") from None


def newest_step(path: Path) -> int:
    """Largest step among the last lines of a run's `metrics.jsonl`; 0 before the first.

    Steps that a crash undid are written again under the same number, so the largest only grows while the run gets on.
    """
    return max((entry["step"] for entry in _metrics_tail(path)), default=0)


def newest_metrics(path: Path) -> dict[str, Any]:
    """The last whole line of a run's `metrics.jsonl`; empty before the first."""
    tail = _metrics_tail(path)
    return tail[-1] if tail else {}


def _metrics_tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of `metrics.jsonl`."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            file.seek(-min(_METRICS_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = file.read().splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        # The first line may lack its beginning, and a kill may have cut another.
        with suppress(ValueError, TypeError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                entries.append(entry)
    return entries


def _stem(config_path: Path) -> str:
    """Turn the config file's name into the beginning of a run name."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", config_path.stem).lstrip("._-") or "run"
    return cleaned[: _MAX_NAME_LENGTH - 8]


def _numbered(parent: Path, stem: str, *, newest: bool) -> Path:
    """Find the newest `stem-N`, or the next free one."""
    pattern = re.compile(re.escape(stem) + r"-(\d+)")
    matches = [pattern.fullmatch(entry.name) for entry in parent.iterdir()] if parent.is_dir() else []
    largest = max((int(match[1]) for match in matches if match), default=0)
    if newest and not largest:
        raise ConfigError(f"run.resume is set and {parent} holds no run called {stem}-N; name it with --run.name")
    return parent / f"{stem}-{largest if newest else largest + 1}"


def _made(path: Path) -> RunDirectory:
    """Make a new run directory."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists; go on with it by --run.resume true, or choose another name by --run.name"
        ) from None
    except OSError as error:
        raise ConfigError(f"run.directory: {path} cannot be made ({error.strerror})") from None
    run_id = f"{path.name}-{secrets.token_hex(_SUFFIX_BYTES)}"
    (path / run_folder.RUN_ID_FILE).write_text(f"{run_id}\n", encoding="utf-8")
    return _opened(path, run_id, created=True)


def _resumed(path: Path) -> RunDirectory:
    """Take up a run directory that exists."""
    if not path.is_dir():
        raise ConfigError(f"run.resume is set and {path} does not exist; start it without --run.resume")
    return _opened(path, read_run_id(path), created=False)


def _opened(path: Path, run_id: str, *, created: bool) -> RunDirectory:
    """Lock the directory and make its folders."""
    lock = (path / run_folder.LOCK_FILE).open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(f"{path} is in use by another `headrace run`; wait for its end or stop it") from None
    directory = RunDirectory(path=path, run_id=run_id, created=created, lock=lock)
    directory.logs.mkdir(exist_ok=True)
    directory.redis.mkdir(mode=0o700, exist_ok=True)
    return directory
