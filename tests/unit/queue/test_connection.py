from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from services.common.errors import ConfigError, InternalError, OverloadedError, UnavailableError
from services.queue.connection import RedisConnection
from tests.redis_server import free_port, running_server


@pytest.fixture
async def connection(redis_url):
    connection = RedisConnection(redis_url)
    yield connection
    await connection.close()


async def test_a_url_that_cannot_be_read_is_refused():
    with pytest.raises(ConfigError, match=r"queue\.redis_url"):
        RedisConnection("http://localhost")


async def test_bulk_values_are_written_before_the_script_and_never_over_others(connection, driver):
    await driver.create()
    key = f"hr:{{{driver.run_id}}}:run"
    bulk = f"hr:{{{driver.run_id}}}:bulk"
    _, written = await connection.write_and_run("sweep", key, 0, 0, values={bulk: b"first"})
    assert written == [bulk]
    _, written = await connection.write_and_run("sweep", key, 0, 0, values={bulk: b"second", f"{bulk}s": b"x"})
    assert written == [f"{bulk}s"]
    assert await connection.read([bulk, "nothing"]) == [b"first", None]
    assert await connection.read([]) == []


async def test_scripts_are_sent_again_after_the_server_forgot_them(connection, driver):
    await driver.create()
    key = f"hr:{{{driver.run_id}}}:run"
    assert (await connection.run("sweep", key, 0, 0))[0] == b"ok"
    await connection._redis.script_flush()
    assert (await connection.run("sweep", key, 0, 0))[0] == b"ok"
    await connection._redis.script_flush()
    answer, written = await connection.write_and_run("sweep", key, 0, 0, values={f"{key}:bulk": b"x"})
    assert (answer[0], written) == (b"ok", [f"{key}:bulk"])


async def test_sets_of_names_are_kept(connection):
    await connection.add_member("names", "b")
    await connection.add_member("names", "a")
    assert await connection.members("names") == ["a", "b"]
    await connection.remove_member("names", "a")
    assert await connection.members("names") == ["b"]
    assert (await connection.count_members("names"), await connection.count_members("none")) == (1, 0)
    assert (await connection.exists("names"), await connection.exists("none")) == (True, False)


async def test_keys_are_found_by_pattern_in_several_looks(connection):
    await connection._redis.mset({f"scan:{number}": b"" for number in range(300)} | {"scans:0": b""})
    found, cursor, looks = set(), 0, 0
    while looks == 0 or cursor:
        cursor, keys = await connection.scan("scan:*", cursor, look_at=50)
        found |= set(keys)
        looks += 1
    assert found == {f"scan:{number}".encode() for number in range(300)}
    assert looks > 2


async def test_a_broken_script_call_is_an_internal_error(connection, driver):
    await driver.create()
    with pytest.raises(InternalError, match=r"Redis at 127\.0\.0\.1"):
        await connection.run("commit_batch", f"hr:{{{driver.run_id}}}:run", driver.epoch, "train", 1, 0, 0, "no json")


async def test_a_server_that_is_away_is_named_without_the_password():
    port = free_port()
    connection = RedisConnection(f"redis://user:secret@127.0.0.1:{port}/0")
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} cannot be reached") as caught:
        await connection.check()
    assert "secret" not in str(caught.value)
    await connection.close()


async def test_a_wrong_password_is_told_apart(tmp_path):
    with running_server(tmp_path, "--requirepass", "right") as url:
        for password in (":wrong@", ""):
            connection = RedisConnection(url.replace("redis://", f"redis://{password}"))
            with pytest.raises(ConfigError, match="refused the user or password") as caught:
                await connection.check()
            assert "wrong" not in str(caught.value)
            with pytest.raises(UnavailableError, match="refused the user or password"):
                await connection.read(["key"])
            await connection.close()


async def test_a_full_server_is_an_overload_that_names_its_bound(tmp_path, driver):
    with running_server(tmp_path, "--maxmemory", "2mb") as url:
        connection = RedisConnection(url)
        await connection.check()
        too_much = {f"hr:{{x}}:{index}": bytes(100_000) for index in range(64)}
        with pytest.raises(OverloadedError, match="out of memory"):
            await connection.write_and_run("sweep", "hr:{x}:run", 0, 0, values=too_much)
        await connection.close()


async def test_a_cancellation_is_never_swallowed(connection, driver):
    await driver.create()

    async def ask_forever():
        while True:
            await connection.run("sweep", f"hr:{{{driver.run_id}}}:run", 0, 0)

    moment = random.Random(1)
    for _ in range(200):
        task = asyncio.ensure_future(ask_forever())
        await asyncio.sleep(moment.uniform(0.0, 0.003))
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2.0)
        assert done == {task}


@pytest.mark.parametrize(("appendonly", "num_warnings"), [("no", 1), ("yes", 0)])
async def test_a_server_that_keeps_nothing_on_disk_is_named_once(tmp_path, appendonly, num_warnings):
    with running_server(tmp_path, "--appendonly", appendonly) as url, capture_logs() as logs:
        connection = RedisConnection(url)
        await connection.check()
        await connection.check()
        await connection.close()
    assert len([entry for entry in logs if "appendonly no" in entry["event"]]) == num_warnings
