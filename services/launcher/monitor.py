"""Watches a run from inside the launcher: tells what is new, feeds the live view, and remembers who waited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.common.clients.queue import QueueClient
from services.common.errors import HeadraceError
from services.common.rpc.channel import open_channel
from services.launcher.snapshot import take_snapshot
from services.launcher.view import draw

if TYPE_CHECKING:
    from services.common.types import RunId
    from services.launcher.bottleneck import Cores
    from services.launcher.news import News
    from services.launcher.screen import Screen

_INTERVAL_SECONDS = 2.0


class Monitor:
    """Asks the queue every two seconds while the run goes on.

    Example:
        news = News(own_rollouters=("rollouter-0",))
        monitor = Monitor(config.queue.address, run_id, screen=screen, cores=cores_of(config), news=news)
        task = group.create_task(monitor.run())
        ...
        monitor.rollouter_wait_share
    """

    def __init__(self, queue_address: str, run_id: RunId, *, screen: Screen, cores: Cores, news: News) -> None:
        """Watch a run.

        Args:
            queue_address: `host:port` of its queue.
            run_id: the run.
            screen: where the view goes.
            cores: who computes on this machine.
            news: tells what is new.
        """
        self._queue_address = queue_address
        self._run_id = run_id
        self._screen = screen
        self._cores = cores
        self._news = news
        self._waited = 0.0
        self._num_seen = 0

    @property
    def rollouter_wait_share(self) -> float | None:
        """Share of its time that the average rollouter waited while the trainer trained; None when nothing was seen."""
        return self._waited / self._num_seen if self._num_seen else None

    async def run(self) -> None:
        """Watch until cancelled; a queue that is away is asked again."""
        channel = open_channel(self._queue_address)
        client = QueueClient(channel, self._run_id)
        try:
            while True:
                await self._look(client)
                await asyncio.sleep(_INTERVAL_SECONDS)
        finally:
            await channel.close(None)

    async def _look(self, client: QueueClient) -> None:
        """Take one snapshot."""
        try:
            snapshot = await take_snapshot(client)
        except HeadraceError:
            # Not there yet, or being started again; the supervisor says so where it matters.
            return
        for line in self._news.since_last(snapshot.stats):
            self._screen.say(line)
        share = snapshot.rollouter_wait_share
        if share is not None and snapshot.trainer_metric("wait_share") is not None:
            self._waited += share
            self._num_seen += 1
        if self._screen.wants_view:
            self._screen.show(draw(snapshot, title=self._run_id, cores=self._cores))
