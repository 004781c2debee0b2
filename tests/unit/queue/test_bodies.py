from __future__ import annotations

import asyncio
import uuid

import pytest

from services.common.errors import UnavailableError
from services.queue.bodies import Bodies
from services.queue.connection import RedisConnection


async def test_bodies_are_read_once_and_the_oldest_leave_at_the_bound(redis_url):
    connection = RedisConnection(redis_url)
    names = [f"body-{uuid.uuid4().hex}" for _ in range(3)]
    for name in names:
        await connection._redis.set(name, bytes(40))
    bodies = Bodies(connection, max_bytes=600)
    assert await bodies.read([names[0], names[0], "nothing"]) == {names[0]: bytes(40)}
    await connection._redis.delete(names[0])
    assert set(await bodies.read(names[:2])) == set(names[:2])
    await bodies.read(names[2:])
    assert set(await bodies.read(names[:2])) == {names[1]}
    await connection.close()


class Slow:
    """A store of bodies that answers when it is told to."""

    def __init__(self):
        self.asked, self.answers = [], asyncio.Queue()

    async def read(self, keys):
        self.asked.append(list(keys))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(keys)


async def start(bodies, number):
    readers = [asyncio.ensure_future(bodies.read(["a"])) for _ in range(number)]
    await asyncio.sleep(0)
    return readers


async def test_a_body_that_several_want_at_the_same_time_is_read_once():
    slow = Slow()
    readers = await start(Bodies(slow), 5)
    slow.answers.put_nowait(b"body")
    assert await asyncio.gather(*readers) == [{"a": b"body"}] * 5
    assert slow.asked == [["a"]]


async def test_a_body_that_is_gone_is_left_out_for_all():
    slow = Slow()
    readers = await start(Bodies(slow), 3)
    slow.answers.put_nowait(None)
    assert await asyncio.gather(*readers) == [{}] * 3
    assert slow.asked == [["a"]]


async def test_when_the_one_who_reads_leaves_another_reads():
    slow = Slow()
    readers = await start(Bodies(slow), 3)
    readers[0].cancel()
    slow.answers.put_nowait(b"body")
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [{"a": b"body"}] * 2
    assert slow.asked == [["a"]] * 2


async def test_a_failed_read_fails_for_all_who_wait_and_is_tried_anew():
    slow = Slow()
    bodies = Bodies(slow)
    readers = await start(bodies, 3)
    slow.answers.put_nowait(UnavailableError("away"))
    for reader in readers:
        with pytest.raises(UnavailableError, match="away"):
            await reader
    slow.answers.put_nowait(b"body")
    assert await bodies.read(["a"]) == {"a": b"body"}
