from __future__ import annotations

import asyncio
import uuid

import pytest

from services.common.errors import UnavailableError
from services.queue.connection import RedisConnection
from services.queue.kept import Kept


async def test_values_are_read_once_and_the_oldest_leave_at_the_bound(redis_url):
    connection = RedisConnection(redis_url)
    names = [f"value-{uuid.uuid4().hex}" for _ in range(3)]
    for name in names:
        await connection._redis.set(name, bytes(40))
    kept = Kept(connection, max_bytes=600)
    assert await kept.read([names[0], names[0], "nothing"]) == {names[0]: bytes(40)}
    await connection._redis.delete(names[0])
    assert set(await kept.read(names[:2])) == set(names[:2])
    await kept.read(names[2:])
    assert set(await kept.read(names[:2])) == {names[1]}
    await connection.close()


class Slow:
    """A store that answers when it is told to."""

    def __init__(self):
        self.asked, self.answers = [], asyncio.Queue()

    async def read(self, keys):
        self.asked.append(list(keys))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(keys)


async def start(kept, number):
    readers = [asyncio.ensure_future(kept.read(["a"])) for _ in range(number)]
    await asyncio.sleep(0)
    return readers


async def test_a_value_that_several_want_at_the_same_time_is_read_once():
    slow = Slow()
    readers = await start(Kept(slow, max_bytes=600), 5)
    slow.answers.put_nowait(b"value")
    assert await asyncio.gather(*readers) == [{"a": b"value"}] * 5
    assert slow.asked == [["a"]]


async def test_a_value_that_is_gone_is_left_out_for_all():
    slow = Slow()
    readers = await start(Kept(slow, max_bytes=600), 3)
    slow.answers.put_nowait(None)
    assert await asyncio.gather(*readers) == [{}] * 3
    assert slow.asked == [["a"]]


async def test_when_the_one_who_reads_leaves_another_reads():
    slow = Slow()
    readers = await start(Kept(slow, max_bytes=600), 3)
    readers[0].cancel()
    slow.answers.put_nowait(b"value")
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [{"a": b"value"}] * 2
    assert slow.asked == [["a"]] * 2


async def test_a_failed_read_fails_for_all_who_wait_and_is_tried_anew():
    slow = Slow()
    kept = Kept(slow, max_bytes=600)
    readers = await start(kept, 3)
    slow.answers.put_nowait(UnavailableError("away"))
    for reader in readers:
        with pytest.raises(UnavailableError, match="away"):
            await reader
    slow.answers.put_nowait(b"value")
    assert await kept.read(["a"]) == {"a": b"value"}


async def test_what_is_taken_is_not_kept_and_what_is_not_kept_is_read():
    slow = Slow()
    kept = Kept(slow, max_bytes=600)
    kept.keep("a", b"value")
    slow.answers.put_nowait(b"read")
    assert await kept.take(["b", "a"]) == {"a": b"value", "b": b"read"}
    slow.answers.put_nowait(b"read again")
    assert await kept.take(["a", "b"]) == {"a": b"read again", "b": b"read again"}
    slow.answers.put_nowait(None)
    assert await kept.take(["a"]) == {}
    assert slow.asked == [["b"], ["a", "b"], ["a"]]


async def test_the_oldest_leave_at_the_bound_and_what_is_larger_than_it_is_not_kept():
    slow = Slow()
    kept = Kept(slow, max_bytes=600)
    for key in "abc":
        kept.keep(key, bytes(50))
    kept.keep("b", b"another")
    kept.keep("huge", bytes(600))
    slow.answers.put_nowait(b"read")
    assert await kept.take(["a", "b", "c", "huge"]) == {
        "a": b"read",
        "b": bytes(50),
        "c": bytes(50),
        "huge": b"read",
    }
    # The room of what was taken is free again.
    for key in "de":
        kept.keep(key, bytes(50))
    assert slow.asked == [["a", "huge"]]
    slow.answers.put_nowait(None)
    assert set(await kept.take(["d", "e"])) == {"d", "e"}
