"""`headrace runs` and `headrace delete`: the runs that a queue holds. For a Redis that several runs share."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.clients.runs import RunsClient
from services.common.config import load_config
from services.common.errors import ConfigError, NotFoundError
from services.common.rpc.channel import open_channel
from services.common.run_folder import RUN_ID_FILE
from services.common.types import RunId
from services.launcher.run_directory import read_run_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from services.common.types import Deletion, RunSummary

    T = TypeVar("T")

_DEFAULT_FOLDER = Path("runs")
_DELETE_SECONDS = 600.0
_COLUMNS = ("run", "state", "created", "epoch", "commits", "version", "open tasks", "bytes", "trainer", "heard")


def runs_command(run_directory: Path | None, *, address: str) -> int:
    """List the runs of a queue, and return the exit status.

    Args:
        run_directory: a run's folder, whose queue is asked; None takes the newest one in `runs`.
        address: `host:port` of the queue; empty takes the run's.

    Raises:
        ConfigError: no queue was named, and there is no run whose queue could be asked.
        UnavailableError: it does not answer.
    """
    address = address or queue_address(run_directory or newest_run_directory())
    runs = asyncio.run(_ask(address, lambda client: client.list_runs()))
    sys.stdout.write(runs_table(runs) if runs else f"the queue at {address} holds no run\n")
    return 0


def delete_command(run: str, *, force: bool, address: str) -> int:
    """Delete a run from its queue, and return the exit status. What it left in its folder stays.

    Args:
        run: the run's id, or its folder.
        force: also when it has not finished.
        address: `host:port` of the queue; empty takes that of the run's folder, else of the newest run in `runs`.

    Raises:
        NotFoundError: the queue holds no such run.
        RunNotFinishedError: it has not finished.
        UnavailableError: the queue does not answer.
    """
    folder = Path(run)
    is_folder = (folder / RUN_ID_FILE).is_file()
    run_id = RunId(read_run_id(folder) if is_folder else run)
    address = address or queue_address(folder if is_folder else newest_run_directory())
    deletion = asyncio.run(_ask(address, lambda client: _delete(client, run_id, force=force)))
    if not deletion.num_keys:
        raise NotFoundError(f"the queue at {address} holds no run {run_id!r}; `headrace runs` lists those it holds")
    rest = "" if deletion.complete else "; the queue goes on with the rest"
    sys.stdout.write(f"deleted {run_id} ({deletion.num_keys:,} keys) from the queue at {address}{rest}\n")
    return 0


def queue_address(run_directory: Path) -> str:
    """Where the queue of a run listens.

    Raises:
        ConfigError: it is no run directory.
    """
    read_run_id(run_directory)
    return load_config(run_directory / "config.toml").queue.address


def newest_run_directory(parent: Path = _DEFAULT_FOLDER) -> Path:
    """The run directory that was begun or resumed last.

    Raises:
        ConfigError: there is none.
    """
    configs = [path for path in parent.glob("*/config.toml") if (path.parent / RUN_ID_FILE).is_file()]
    if not configs:
        raise ConfigError(f"which queue? {parent.absolute()} holds no run; name the queue by --address HOST:PORT")
    return max(configs, key=lambda path: path.stat().st_mtime).parent


def runs_table(runs: Sequence[RunSummary], *, now: float | None = None) -> str:
    """Write a list of runs as lines of aligned columns, which are never cut: people and programs read them.

    Args:
        runs: the list.
        now: seconds since the epoch; None asks the clock.
    """
    now = time.time() if now is None else now
    rows = [_COLUMNS, *(_row(run, now=now) for run in runs)]
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(len(_COLUMNS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _row(run: RunSummary, *, now: float) -> tuple[str, ...]:
    """The cells of a run."""
    if not run.readable:
        return run.run_id, f"format {run.format}"
    return (
        run.run_id,
        "finished" if run.finished else "open",
        _ago(now - run.create_time),
        str(run.epoch),
        str(run.commit_number),
        str(run.policy_version),
        f"{run.open_tasks:,}",
        _bytes(run.payload_bytes),
        _ago(run.trainer_idle_seconds),
        _ago(run.idle_seconds),
    )


async def _ask(address: str, call: Callable[[RunsClient], Awaitable[T]]) -> T:
    """Make one call."""
    channel = open_channel(address)
    try:
        return await call(RunsClient(channel))
    finally:
        await channel.close(None)


async def _delete(client: RunsClient, run_id: RunId, *, force: bool) -> Deletion:
    """Delete until nothing is left or the time is over."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _DELETE_SECONDS
    num_keys = 0
    while True:
        deletion = await client.delete_run(run_id, force=force)
        num_keys += deletion.num_keys
        if deletion.complete or clock() > deadline:
            return type(deletion)(num_keys=num_keys, complete=deletion.complete)


def _ago(seconds: float) -> str:
    """A time that has passed, in the unit that reads best."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _bytes(number: int) -> str:
    """A size in the unit that reads best."""
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
