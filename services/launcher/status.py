"""`headrace status`: where a run stands, asked from its queue."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from services.common.clients.queue import QueueClient
from services.common.config import load_config
from services.common.errors import InternalError, NotFoundError, UnavailableError
from services.common.rpc.channel import open_channel
from services.common.types import RunId
from services.launcher.bottleneck import cores_of
from services.launcher.run_directory import read_run_id
from services.launcher.snapshot import take_snapshot
from services.launcher.summary import imbalance, last_words, read_summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import RenderableType

    from services.launcher.bottleneck import Cores
    from services.launcher.snapshot import Snapshot

_REFRESH_SECONDS = 1.0


def status_command(run_directory: Path, *, watch: bool) -> int:
    """Run the command and return its exit status: 0 when the run goes on or has finished, and its account adds up.

    Args:
        run_directory: the run's folder.
        watch: show again every second until the run has ended.

    Raises:
        ConfigError: it is no run directory.
        UnavailableError: the run was ended early, which is told with what it left, or only begins.
        InternalError: its account does not add up.
    """
    run_id = RunId(read_run_id(run_directory))
    config = load_config(run_directory / "config.toml")
    address, cores = config.queue.address, cores_of(config)
    from rich.console import Console  # noqa: PLC0415 - after the checks, which need no terminal
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False)
    if watch:
        with Live(console=console, refresh_per_second=4) as live:
            seen = asyncio.run(_poll(address, run_id, show=live.update, once=False, cores=cores))
    else:
        seen = asyncio.run(_poll(address, run_id, show=console.print, once=True, cores=cores))
    if seen is not None:
        lost, twice = (sum(getattr(ledger, name) for ledger in seen.ledgers) for name in ("lost", "trained_twice"))
        return _judged(imbalance(lost, twice))
    summary = read_summary(run_directory)
    if summary is None:
        sys.stdout.write(last_words(run_directory))
        raise UnavailableError(
            f"the queue of {run_id} at {address} does not answer and {run_directory} holds no results; "
            "the run was ended early: go on with headrace run CONFIG --run.resume true"
        )
    sys.stdout.write(summary.text())
    return _judged(summary.imbalance)


def _judged(problem: str) -> int:
    """Return the exit status of a run whose account adds up.

    Raises:
        InternalError: it does not.
    """
    if problem:
        raise InternalError(problem)
    return 0


async def _poll(
    address: str, run_id: RunId, *, show: Callable[[RenderableType], None], once: bool, cores: Cores
) -> Snapshot | None:
    """Show the run once, or until it has ended; returns what was seen last, None when its queue does not answer."""
    from services.launcher.view import draw  # noqa: PLC0415 - loads rich

    channel = open_channel(address)
    client = QueueClient(channel, run_id)
    try:
        while True:
            try:
                snapshot = await take_snapshot(client)
            except UnavailableError:
                return None
            except NotFoundError:
                if once:
                    raise UnavailableError(f"{run_id} is starting; ask again in a few seconds") from None
            else:
                show(draw(snapshot, title=run_id, cores=cores))
                if once or snapshot.stats.run_finished:
                    return snapshot
            await asyncio.sleep(_REFRESH_SECONDS)
    finally:
        await channel.close(None)
