"""The reason of a wait is logged after a while and ever more seldom."""

import structlog

from services.common.errors import UnavailableError
from services.rollouter.wait_log import WaitLog
from tests.factories import make_report, make_stats
from tests.unit.rollouter.fakes import FakeQueue


class _Waits:
    """A wait log whose clock is set by hand."""

    def __init__(self, queue):
        self.now = 0.0
        self._waits = WaitLog(queue, after_seconds=10.0, clock=lambda: self.now)

    async def at(self, now, *, working=False):
        self.now = now
        with structlog.testing.capture_logs() as logs:
            await self._waits.note(working=working, policy_version=3)
        return logs


async def test_a_wait_is_explained_after_a_while_then_ever_more_seldom_and_its_end_is_told():
    waits = _Waits(FakeQueue())
    assert await waits.at(0.0) == await waits.at(9.0) == []
    (first,) = await waits.at(10.0)
    assert (first["event"], first["waited_seconds"], first["log_level"]) == ("waits for work", 10.0, "info")
    assert "no task waits" in first["why"]
    assert await waits.at(19.0) == []
    assert len(await waits.at(20.0)) == 1
    (end,) = await waits.at(21.0, working=True)
    assert (end["event"], end["waited_seconds"]) == ("has work again", 21.0)
    assert await waits.at(25.0) == []


async def test_a_stopped_trainer_is_a_warning_with_its_name():
    queue = FakeQueue()
    queue.stats = make_stats(make_report("trainer-9", age_seconds=30.0), ready_groups=8, ask_age_seconds=31.0)
    waits = _Waits(queue)
    await waits.at(0.0)
    (line,) = await waits.at(30.0)
    assert line["log_level"] == "warning"
    assert line["why"].startswith("trainer-9 has not consumed for 31 s")


async def test_a_queue_that_is_away_is_asked_again_later():
    queue = FakeQueue()
    waits = _Waits(queue)
    await waits.at(0.0)
    queue.errors = [UnavailableError("away")]
    assert await waits.at(10.0) == []
    queue.errors = []
    assert len(await waits.at(11.0)) == 1
