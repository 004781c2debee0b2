"""`headrace status`: where a run stands, asked from its queue."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from services.common.clients.queue import QueueClient
from services.common.config import load_config
from services.common.errors import UnavailableError
from services.common.rpc.channel import open_channel
from services.common.types import RunId
from services.launcher.run_directory import read_run_id
from services.launcher.snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from services.launcher.snapshot import Snapshot

_REFRESH_SECONDS = 1.0


def status_command(run_directory: Path, *, watch: bool) -> int:
    """Run the command and return its exit status.

    Args:
        run_directory: the run's folder.
        watch: show again every second until the run has ended.

    Raises:
        ConfigError: it is no run directory.
        UnavailableError: the run does not go on.
    """
    run_id = RunId(read_run_id(run_directory))
    address = load_config(run_directory / "config.toml").queue.address
    from rich.console import Console  # noqa: PLC0415 - after the checks, which need no terminal
    from rich.live import Live  # noqa: PLC0415

    from services.launcher.view import draw  # noqa: PLC0415

    console = Console(highlight=False)
    if not watch:
        asyncio.run(_poll(address, run_id, on_snapshot=lambda one: console.print(draw(one, title=run_id)), once=True))
        return 0
    with Live(console=console, refresh_per_second=4) as live:
        asyncio.run(_poll(address, run_id, on_snapshot=lambda one: live.update(draw(one, title=run_id)), once=False))
    return 0


async def _poll(address: str, run_id: RunId, *, on_snapshot: Callable[[Snapshot], None], once: bool) -> None:
    """Ask once, or until the run has ended."""
    channel = open_channel(address)
    client = QueueClient(channel, run_id)
    seen = False
    try:
        while True:
            try:
                snapshot = await take_snapshot(client)
            except UnavailableError:
                if not seen:
                    raise UnavailableError(
                        f"the queue of {run_id} at {address} does not answer; the run does not go on: its results are "
                        "in summary.json and ledger.json"
                    ) from None
                sys.stderr.write("the run has ended\n")
                return
            seen = True
            on_snapshot(snapshot)
            if once or snapshot.stats.run_finished:
                return
            await asyncio.sleep(_REFRESH_SECONDS)
    finally:
        await channel.close(None)
