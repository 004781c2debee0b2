from __future__ import annotations

import asyncio

from services.common.types import RunId
from services.queue.waiting import Topic, Waiting

RUN = RunId("demo")


class Source:
    """Counts tries, and has something from the n-th on."""

    def __init__(self, ready_at):
        self.ready_at = ready_at
        self.tries = 0

    async def attempt(self):
        self.tries += 1
        return self.tries >= self.ready_at


async def until(waiting, source, *, topic=Topic.TASKS, wait_seconds=5.0):
    return await waiting.until(RUN, topic, source.attempt, enough=bool, wait_seconds=wait_seconds)


async def test_what_is_there_is_returned_without_waiting():
    source = Source(1)
    assert await until(Waiting(), source)
    assert source.tries == 1


async def test_nothing_is_returned_when_the_time_is_over():
    source = Source(1000)
    assert not await until(Waiting(), source, wait_seconds=0.1)
    assert 2 <= source.tries <= 10


async def test_no_wait_is_one_try():
    source = Source(2)
    assert not await until(Waiting(), source, wait_seconds=0.0)
    assert source.tries == 1


async def test_it_looks_again_by_itself():
    assert await until(Waiting(), Source(3), wait_seconds=2.0)


async def test_news_of_its_topic_wake_a_waiter_and_others_do_not():
    waiting, source = Waiting(), Source(1000)
    task = asyncio.ensure_future(until(waiting, source, wait_seconds=0.5))
    await asyncio.sleep(0.01)
    tries = source.tries
    waiting.notify(RUN, Topic.GROUPS)
    waiting.notify(RunId("other"))
    await asyncio.sleep(0.005)
    assert source.tries == tries
    waiting.notify(RUN)
    await asyncio.sleep(0.005)
    assert source.tries == tries + 1
    await task


async def test_a_waiter_that_misses_several_sleeps_until_as_many_have_come():
    waiting, source = Waiting(), Source(1000)
    task = asyncio.ensure_future(
        waiting.until(RUN, Topic.GROUPS, source.attempt, enough=bool, wait_seconds=20.0, missing=lambda _: 3)
    )

    async def tries_after(**options):
        before = source.tries
        waiting.notify(RUN, Topic.GROUPS, **options)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return source.tries - before

    await asyncio.sleep(0)
    assert source.tries == 1
    assert [await tries_after(amount=1) for _ in range(6)] == [0, 0, 1, 0, 0, 1]
    assert await tries_after(amount=5) == 1
    assert await tries_after() == 1
    waiting.close()
    await task


async def test_news_during_a_try_count():
    waiting = Waiting()
    tries = []

    async def attempt():
        tries.append(1)
        if len(tries) == 1:
            waiting.notify(RUN, Topic.GROUPS, amount=2)
            await asyncio.sleep(0)
        return len(tries) == 2

    async with asyncio.timeout(0.025):
        assert await waiting.until(RUN, Topic.GROUPS, attempt, enough=bool, wait_seconds=20.0, missing=lambda _: 2)


async def test_no_waiter_stays_behind():
    waiting = Waiting()
    task = asyncio.ensure_future(until(waiting, Source(1000), wait_seconds=20.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert waiting._waiters == {}


async def test_closing_ends_all_waits():
    waiting = Waiting()
    task = asyncio.ensure_future(until(waiting, Source(1000), wait_seconds=20.0))
    await asyncio.sleep(0.01)
    waiting.close()
    assert not await asyncio.wait_for(task, 1.0)
    assert not await asyncio.wait_for(until(waiting, Source(1000), wait_seconds=20.0), 1.0)
