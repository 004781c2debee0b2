"""The embedded Redis: started from a real binary, locked by a password, durable."""

import asyncio
from pathlib import Path

import psutil
import pytest
from redis import Redis

from services.common.errors import ConfigError
from services.launcher.ports import free_port
from services.launcher.process import ChildProcess
from services.launcher.redis_server import embedded_redis, find_program, ping, require_reachable, without_secret


async def _until_up(url: str) -> None:
    for _ in range(100):
        if not await ping(url):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the server did not come up within 5 s")


async def _with_server(server, work):
    async with asyncio.TaskGroup() as group:
        child = await ChildProcess.start(server.command)
        task = group.create_task(child.follow(lambda _: None))
        await _until_up(server.url)
        result = await asyncio.to_thread(work, child.pid)
        child.kill()
        await task
    return result


async def test_it_keeps_its_promises(tmp_path):
    server = embedded_redis(tmp_path, append_fsync="always")

    def look(pid):
        client = Redis.from_url(server.url)
        client.set("kept", "yes")
        settings = {name: client.config_get(name)[name] for name in ("appendonly", "appendfsync", "maxmemory-policy")}
        client.close()
        return settings, " ".join(psutil.Process(pid).cmdline())

    settings, command_line = await _with_server(server, look)
    assert settings == {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert server.password not in command_line

    def read(_):
        client = Redis.from_url(server.url)
        value = client.get("kept")
        client.close()
        return value

    assert await _with_server(server, read) == b"yes"
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and server.password.encode() in path.read_bytes()
    ]


async def test_a_wrong_password_is_refused(tmp_path):
    server = embedded_redis(tmp_path, append_fsync="everysec")
    wrong = server.url.replace(server.password, "wrong")

    async with asyncio.TaskGroup() as group:
        child = await ChildProcess.start(server.command)
        task = group.create_task(child.follow(lambda _: None))
        await _until_up(server.url)
        assert "password" in await ping(wrong)
        child.kill()
        await task


async def test_an_unreachable_server_ends_in_a_sentence_without_the_password():
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}/0"
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        await require_reachable(url)
    assert "hunter2" not in caught.value.message


async def test_an_address_that_makes_no_sense_ends_in_a_sentence():
    with pytest.raises(ConfigError, match="not understood"):
        await require_reachable("redis://localhost:port")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://h:1/0"),
        ("redis://u:p@ss@h:1", "redis://h:1"),
        ("rediss://h:1/0?password=pw", "rediss://h:1/0"),
    ],
)
def test_secrets_are_not_shown(url, shown):
    assert without_secret(url) == shown


def test_a_server_on_the_path_wins(tmp_path, monkeypatch):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == program
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert Path(find_program()).name == "valkey-server"
