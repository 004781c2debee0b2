"""A server at its maxmemory: what takes memory is refused as a whole, what gives it back goes on.

Redis refuses a script's first write when that may take memory, and nothing after a write that cannot.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import services.queue.scripts as scripts
from services.common.errors import OverloadedError
from services.common.types import FailureReason, PutOutcome, RunId
from services.queue.records import PutRecord
from services.queue.store import QueueStore
from tests.factories import make_report
from tests.redis_server import running_server
from tests.unit.queue.driver import Driver, sequences

PAYLOAD = bytes(512 * 1024)
FREE_BYTES = len(PAYLOAD) // 2
"""Less than a payload; a commit makes more room than that."""


@pytest.fixture(scope="module")
def full_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def store(full_url):
    store = QueueStore(full_url)
    await store.start()
    yield store
    await store.close()


class Scene:
    """A run with two ready groups of big payloads, a group being worked on and a fresh one, on a full server."""

    def __init__(self, store) -> None:
        self.driver = Driver(store, RunId(f"run-{uuid.uuid4().hex[:12]}"))
        self.redis = store._redis._redis
        self.working = []

    async def prepare(self):
        await self.redis.config_set("maxmemory", 0)
        driver = self.driver
        await driver.begin(max_staleness=4, lease_seconds=60.0)
        await driver.feed(0, 1, 2, 3)
        assert len(await driver.put(*await driver.lease(4), payload=PAYLOAD)) == 4
        self.working = await driver.lease(2)
        await self.fill()

    async def fill(self):
        """Let the server be over its bound by less than a commit gives back."""
        used = (await self.redis.info("memory"))["used_memory"]
        await self.redis.config_set("maxmemory", used - FREE_BYTES)

    async def account(self):
        return (await self.driver.account()).ledgers


@pytest.fixture
async def scene(store):
    scene = Scene(store)
    await scene.prepare()
    yield scene
    await scene.redis.config_set("maxmemory", 0)
    await scene.redis.flushdb()


async def heartbeat(scene):
    status = make_report("r-0").status
    await scene.driver.store.runs.heartbeat(scene.driver.run_id, status)


async def lease(scene):
    found = await scene.driver.lease(2)
    assert len(found) == 2
    scene.working += found


async def commit(scene):
    driver = scene.driver
    batch = await driver.batch(2)
    assert sequences(batch.groups) == [0, 1]
    await driver.commit(1, batch.groups)


async def reconcile(scene):
    driver = scene.driver
    await driver.store.runs.reconcile(
        driver.run_id,
        epoch=driver.epoch,
        commit_number=0,
        first_open_sequence=0,
        ended_sequences=(),
        policy_version=0,
        num_consumed=0,
        num_filtered=0,
        num_dropped=0,
    )


async def take_over(scene):
    before = scene.driver.epoch
    await scene.driver.create("trainer-2")
    assert scene.driver.epoch == before + 1


async def sweep(scene):
    driver = scene.driver
    await scene.redis.config_set("maxmemory", 0)
    name = scene.working[0].lease_id.removeprefix("train/")
    await scene.redis.zadd(f"hr:{{{driver.run_id}}}:train:leases", {name: 0}, xx=True)
    await scene.fill()
    assert (await driver.store.runs.sweep(driver.run_id))[0] == 1
    assert (await driver.ledger()).trajectories.lapsed == 1


async def delete(scene):
    deletion = await scene.driver.store.retirement.delete(scene.driver.run_id, force=True)
    assert deletion.complete
    assert await scene.driver.keys() == []


GO_ON = {
    "lease_batch": lambda scene: scene.driver.batch(2),
    "commit_batch": commit,
    "release_batch": lambda scene: scene.driver.release_batch(),
    "register_version": lambda scene: scene.driver.register(1),
    "create_run": take_over,
    "reconcile": reconcile,
    "heartbeat": heartbeat,
    "lease_tasks": lease,
    "extend_leases": lambda scene: scene.driver.extend(*scene.working),
    "release_tasks": lambda scene: scene.driver.release(*scene.working),
    "put_trajectories": lambda scene: scene.driver.fail(*scene.working),
    "sweep": sweep,
    "read_run": lambda scene: scene.account(),
    "read_dead_letters": lambda scene: scene.driver.store.accounts.dead_letters(scene.driver.run_id, max_letters=9),
    "describe_run": lambda scene: scene.driver.store.retirement.list_runs(),
    "delete_run": delete,
    "delete_keys": delete,
}


def put_with_a_failure(scene):
    done, failed = scene.working
    records = [
        PutRecord(key=done.key, lease_id=done.lease_id, payload=PAYLOAD, oldest_version=0),
        PutRecord(key=failed.key, lease_id=failed.lease_id, failure=FailureReason.ENGINE_ERROR),
    ]
    return scene.driver.store.trajectories.put(scene.driver.run_id, records)


REFUSED = {
    "a put": lambda scene: scene.driver.put(*scene.working, payload=PAYLOAD),
    "a put of one byte": lambda scene: scene.driver.put(*scene.working, payload=b"x"),
    "new tasks": lambda scene: scene.driver.feed(4, 5),
    "a new run": lambda scene: Driver(scene.driver.store, RunId("another")).create(),
}


def test_every_script_is_tried_on_a_full_server():
    only_takes_memory = {"enqueue_tasks"}
    assert set(GO_ON) | only_takes_memory == {path.stem for path in Path(scripts.__file__).parent.glob("*.lua")}


@pytest.mark.parametrize("name", GO_ON)
async def test_what_makes_room_or_is_waited_for_goes_on(scene, name):
    await GO_ON[name](scene)
    if name.startswith("delete"):
        return
    await scene.account()
    # Nothing is in the way of what follows: whatever was done, the rest of the work is trained on.
    await scene.redis.config_set("maxmemory", 0)
    await scene.driver.create()
    await scene.driver.release_batch()
    await finish(scene)


async def finish(scene):
    """Work through all that the run holds."""
    driver = scene.driver
    number = (await driver.create()).commit_number
    for _ in range(4):
        await driver.produce(version=driver.version)
        await driver.put(*scene.working)
        batch = await driver.batch(1)
        if batch.groups:
            number += 1
            await driver.commit(number, batch.groups)
    ledger = await driver.ledger()
    assert (ledger.tasks.open, ledger.trajectories.in_flight) == (0, 0)
    assert (ledger.tasks.consumed, ledger.trained_twice) == (4, 0)


@pytest.mark.parametrize("name", REFUSED)
async def test_what_takes_memory_is_refused_and_leaves_nothing(scene, name):
    account, held = await scene.account(), await scene.driver.snapshot()
    with pytest.raises(OverloadedError, match=r"Redis at 127\.0\.0\.1:\d+ is out of memory .*raise its maxmemory"):
        await REFUSED[name](scene)
    assert await scene.account() == account
    assert await scene.driver.snapshot() == held
    assert await scene.redis.smembers("hr:runs") == {scene.driver.run_id.encode()}


async def test_a_put_of_which_only_the_failure_fits_is_repeated_and_counted_once(scene):
    for _ in range(2):
        with pytest.raises(OverloadedError, match="maxmemory"):
            await put_with_a_failure(scene)
        await scene.account()
    await scene.redis.config_set("maxmemory", 0)
    assert (await put_with_a_failure(scene))[0] is PutOutcome.ACCEPTED
    ledger = await scene.driver.ledger()
    assert (ledger.trajectories.put, dict(ledger.trajectories.failed)) == (5, {"engine_error": 1})
    await finish(scene)


async def test_a_commit_makes_room_and_puts_are_taken_again(scene):
    with pytest.raises(OverloadedError):
        await scene.driver.put(*scene.working, payload=PAYLOAD)
    await commit(scene)
    assert await scene.driver.put(*scene.working, payload=PAYLOAD) == [PutOutcome.ACCEPTED] * 2
    await finish(scene)
