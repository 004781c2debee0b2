from __future__ import annotations

import uuid

from services.queue.bodies import Bodies
from services.queue.connection import RedisConnection


async def test_bodies_are_read_once_and_the_oldest_leave_at_the_bound(redis_url):
    connection = RedisConnection(redis_url)
    names = [f"body-{uuid.uuid4().hex}" for _ in range(3)]
    for name in names:
        await connection._redis.set(name, bytes(40))
    bodies = Bodies(connection, max_bytes=100)
    assert await bodies.read([names[0], names[0], "nothing"]) == {names[0]: bytes(40)}
    await connection._redis.delete(names[0])
    assert set(await bodies.read(names[:2])) == set(names[:2])
    await bodies.read(names[2:])
    assert set(await bodies.read(names[:2])) == {names[1]}
    await connection.close()
