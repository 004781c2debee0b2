"""The monitor must never disturb a run."""

import asyncio

from services.common.types import RunId
from services.launcher.bottleneck import Cores
from services.launcher.monitor import Monitor
from services.launcher.news import News
from services.launcher.ports import free_port
from services.launcher.screen import PlainScreen


async def test_a_queue_that_is_away_is_asked_again_and_nothing_is_made_up():
    cores = Cores(count=2, trainer_threads=1, rollouter_threads=2, replicas=2)
    news = News(own_rollouters=())
    monitor = Monitor(f"127.0.0.1:{free_port()}", RunId("r"), screen=PlainScreen(), cores=cores, news=news)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(monitor.run())
        await asyncio.sleep(0.3)
        assert not task.done()
        task.cancel()
    assert monitor.rollouter_wait_share is None
