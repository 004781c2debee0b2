from __future__ import annotations

import asyncio
import contextlib

import pytest

from services.common.errors import ConfigError
from services.queue.store import QueueStore
from tests.redis_server import running_server


@contextlib.asynccontextmanager
async def sweeping(store):
    task = asyncio.ensure_future(store.sweep_forever())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_leases_lapse_while_nobody_asks(driver, store):
    await driver.begin(lease_seconds=0.05)
    await driver.feed(0, group_size=1)
    await driver.lease()
    async with sweeping(store):
        # Longer than the first looks of a waiter; the sweep wakes it.
        assert len(await driver.lease(wait_seconds=5.0)) == 1


async def test_finished_runs_are_swept_until_nothing_is_left_and_then_forgotten(driver, store):
    await driver.begin()
    await driver.feed(0)
    assert driver.run_id in await store.runs.swept_runs()
    await driver.commit(1, [], final=True)
    async with sweeping(store):
        for _ in range(50):
            if driver.run_id not in await store.runs.swept_runs():
                break
            await asyncio.sleep(0.1)
    assert driver.run_id not in await store.runs.swept_runs()
    assert (await driver.ledger()).tasks.dropped == {"run_ended": 1}


async def test_a_run_that_the_server_lost_is_not_swept_for_ever(driver, store):
    await driver.begin()
    await store._redis._redis.delete(f"hr:{{{driver.run_id}}}:run")
    await store._sweep(driver.run_id)
    assert driver.run_id not in await store.runs.swept_runs()


async def test_sweeping_outlives_a_server_that_goes_away(tmp_path):
    with running_server(tmp_path) as url:
        store = QueueStore(url)
        await store.start()
    async with sweeping(store):
        await asyncio.sleep(0.8)
    await store.close()


async def test_a_server_that_may_evict_is_refused(tmp_path):
    with running_server(tmp_path, "--maxmemory-policy", "volatile-ttl") as url:
        store = QueueStore(url)
        with pytest.raises(ConfigError, match="volatile-ttl"):
            await store.start()
        await store.close()


async def test_draining_ends_long_polls(driver, store):
    await driver.begin()
    waiting = asyncio.ensure_future(driver.lease(wait_seconds=20.0))
    await asyncio.sleep(0.05)
    await store.drain()
    assert await asyncio.wait_for(waiting, 1.0) == []
