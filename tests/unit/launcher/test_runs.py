"""`headrace runs` and `headrace delete` against a real queue service."""

import asyncio
import os
import threading
from contextlib import contextmanager

import pytest

from services.common.errors import ConfigError
from services.common.types import RunId, RunSummary
from services.launcher.__main__ import main
from services.launcher.runs import newest_run_directory, queue_address, runs_table
from services.queue.config import ServiceConfig
from services.queue.server import serve
from services.queue.store import QueueStore
from tests.redis_server import running_server
from tests.unit.queue.driver import Driver

_CONFIG = '[model]\npath = "m"\n[data]\nsource = "rows.jsonl"\n[queue]\naddress = "{address}"\n'


@contextmanager
def queue_service(redis_url):
    """Serve a queue from another thread, as another process would; yields its address."""
    bound, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    found = []

    def on_bound(address):
        found.append(address)
        bound.set()

    def work():
        config = ServiceConfig(redis_url=redis_url)
        loop.run_until_complete(serve(config, on_bound=on_bound, stop=stop, handle_signals=False))

    thread = threading.Thread(target=work)
    thread.start()
    assert bound.wait(20)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="module")
def address(redis_url):
    with queue_service(redis_url) as address:
        yield address


@pytest.fixture
def runs(redis_url):
    """Make three runs: one that goes on, one that has finished, one of another format."""

    async def make():
        store = QueueStore(redis_url)
        await store._redis._redis.flushall()
        for name in ("going-1", "done-1", "other-1"):
            driver = Driver(store, RunId(name))
            await driver.begin()
            await driver.feed(0, 1, 2)
            if name == "done-1":
                await driver.commit(1, [], final=True)
        await store._redis._redis.hset("hr:{other-1}:run", "format", "7")
        await store.close()

    asyncio.run(make())


def _run_directory(parent, name, *, address, run_id):
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "run_id").write_text(f"{run_id}\n")
    (folder / "config.toml").write_text(_CONFIG.format(address=address))
    return folder


def test_the_runs_of_a_queue_are_listed(address, runs, capsys):
    assert main(["runs", "--address", address]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "open" in lines["going-1"].split()
    assert "finished" in lines["done-1"].split()
    assert lines["other-1"].split()[1:] == ["format", "7"]


def test_a_queue_without_runs_says_so(address, runs, capsys):
    for run in ("going-1", "other-1", "done-1"):
        assert main(["delete", run, "--force", "--address", address]) == 0
    capsys.readouterr()
    assert main(["runs", "--address", address]) == 0
    assert "holds no run" in capsys.readouterr().out


def test_a_finished_run_is_deleted_and_then_there_is_none(address, runs, capsys):
    assert main(["delete", "done-1", "--address", address]) == 0
    assert "deleted done-1 (" in capsys.readouterr().out
    assert main(["delete", "done-1", "--address", address]) == 1
    assert "holds no run 'done-1'" in capsys.readouterr().err


def test_a_run_that_goes_on_needs_force(address, runs, capsys):
    assert main(["delete", "going-1", "--address", address]) == 1
    assert "has not finished" in capsys.readouterr().err
    assert main(["delete", "going-1", "--address", address, "--force"]) == 0


def test_a_run_directory_names_both_run_and_queue(address, runs, tmp_path, monkeypatch, capsys):
    folder = _run_directory(tmp_path / "runs", "done", address=address, run_id="done-1")
    monkeypatch.chdir(tmp_path)
    assert main(["runs", str(folder)]) == 0
    assert main(["runs"]) == 0
    assert main(["delete", str(folder)]) == 0
    assert "deleted done-1 (" in capsys.readouterr().out
    assert folder.is_dir()


def test_the_newest_run_directory_is_the_one_whose_configuration_was_written_last(tmp_path):
    for name in ("b", "a", "c"):
        _run_directory(tmp_path, name, address="127.0.0.1:1", run_id=name)
        os.utime(tmp_path / name / "config.toml", (1, 1))
    os.utime(tmp_path / "a" / "config.toml", (2, 2))
    assert newest_run_directory(tmp_path).name == "a"
    assert queue_address(tmp_path / "a") == "127.0.0.1:1"


def test_without_any_run_the_queue_must_be_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="--address"):
        newest_run_directory(tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert main(["runs", "--queue.address", "127.0.0.1:1"]) == 2
    assert "`runs` takes no --queue.address" in capsys.readouterr().err


def test_times_and_sizes_are_told_in_units_that_read_well():
    run = RunSummary(
        run_id=RunId("demo"),
        format="1",
        readable=True,
        payload_bytes=3 * 1024**2,
        create_time=0.0,
        trainer_idle_seconds=200.0,
        idle_seconds=1.0,
    )
    head, line = runs_table([run], now=3 * 86400.0).splitlines()
    assert head.split("  ")[0] == "run"
    assert line.split() == [
        "demo",
        "open",
        "3",
        "d",
        "ago",
        "0",
        "0",
        "-1",
        "0",
        "3.0",
        "MiB",
        "3",
        "min",
        "ago",
        "1",
        "s",
        "ago",
    ]
    assert head.index("heard") == line.index("1 s ago")
