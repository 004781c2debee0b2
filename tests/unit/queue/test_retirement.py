from __future__ import annotations

import asyncio
import time

import pytest

from services.common.errors import NotFoundError, RunNotFinishedError, StateFormatError, UnavailableError
from services.common.types import RunId
from services.queue.quotas import Quotas
from services.queue.store import QueueStore
from tests.redis_server import running_server
from tests.unit.queue.driver import Driver
from tests.unit.queue.test_runs import status


@pytest.fixture(scope="module")
def own_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def redis(own_store):
    return own_store._redis._redis


@pytest.fixture
async def own_store(own_url):
    """A store on a server that holds nothing else."""
    store = QueueStore(own_url)
    await store._redis._redis.flushall()
    yield store
    await store.close()


@pytest.fixture
def run(own_store):
    return Driver(own_store, RunId("demo"))


async def fill(run, *, sequences=range(6)):
    """Bring a run into every state: tasks pending, members leased, put and failed, groups ready, leased and ended."""
    await run.begin(max_member_issues=1, groups_per_version=100_000)
    await run.feed(*sequences, group_size=2)
    members = await run.lease(9)
    await run.put(*members[:6])
    await run.fail(*members[6:8])
    await run.commit(1, (await run.batch(1)).groups)
    await run.batch(1)
    await run.store.runs.heartbeat(run.run_id, status())


async def finish(run):
    await run.begin()
    await run.commit(1, [], final=True)


async def test_a_finished_run_is_deleted_to_the_last_key(run, own_store, redis):
    await fill(run)
    await run.commit(2, [], final=True)
    num_keys = await redis.dbsize()
    deletion = await own_store.retirement.delete(run.run_id)
    assert deletion.complete
    assert 5 < deletion.num_keys <= num_keys
    assert await redis.dbsize() == 0


async def test_a_run_that_goes_on_is_deleted_by_force_only(run, own_store, redis):
    await fill(run)
    with pytest.raises(RunNotFinishedError, match=r"'demo' has not finished.*force"):
        await own_store.retirement.delete(run.run_id)
    assert (await run.ledger()).tasks.fed == 6
    assert (await own_store.retirement.delete(run.run_id, force=True)).complete
    assert await redis.dbsize() == 0


async def test_a_run_that_is_not_there_is_deleted_already(own_store, redis):
    deletion = await own_store.retirement.delete(RunId("nobody"))
    assert (deletion.num_keys, deletion.complete) == (0, True)
    assert await redis.dbsize() == 0


async def test_a_deleted_run_is_not_found_and_no_late_call_brings_it_back(run, own_store, redis):
    await fill(run)
    late, *_ = await run.lease()
    await own_store.retirement.delete(run.run_id, force=True)
    for call in (
        lambda: run.put(late),
        lambda: run.fail(late),
        lambda: run.extend(late),
        lambda: run.release(late),
        lambda: run.feed(70, 71),
        run.lease,
        run.batch,
        lambda: run.commit(2, []),
        lambda: run.register(9),
        lambda: own_store.runs.heartbeat(run.run_id, status()),
        run.account,
    ):
        with pytest.raises(NotFoundError):
            await call()
    assert await redis.dbsize() == 0


async def test_a_waiting_call_learns_at_once_that_its_run_was_deleted(run, own_store):
    await run.begin()
    waiting = asyncio.ensure_future(run.batch(wait_seconds=20.0))
    await asyncio.sleep(0.05)
    await own_store.retirement.delete(run.run_id, force=True)
    with pytest.raises(NotFoundError):
        await asyncio.wait_for(waiting, 2.0)


async def test_a_deletion_that_was_cut_short_hides_the_run_and_is_gone_on_with(run, own_store, redis):
    await fill(run, sequences=range(3000))
    deletion = await own_store.retirement.delete(run.run_id, force=True, seconds=0.0)
    assert not deletion.complete
    assert 0 < deletion.num_keys < 3000
    assert await own_store.retirement.list_runs() == []
    with pytest.raises(NotFoundError):
        await run.account()
    with pytest.raises(UnavailableError, match="is being deleted"):
        await run.create()
    await own_store._sweep(run.run_id)
    assert await own_store.retirement.retire() == ["demo"]
    assert await redis.dbsize() == 0
    assert (await run.create()).created


async def test_a_repeated_deletion_joins_the_one_that_goes_on(run, own_store, redis):
    await fill(run, sequences=range(3000))
    await own_store.retirement.delete(run.run_id, force=True, seconds=0.0)
    found = await asyncio.gather(*(own_store.retirement.delete(run.run_id) for _ in range(3)))
    assert [deletion.complete for deletion in found] == [True] * 3
    assert await redis.dbsize() == 0


async def test_a_slice_that_comes_after_the_end_leaves_a_new_run_alone(run, own_store, redis):
    await run.begin()
    connection, key = own_store._redis, "hr:{demo}:run"
    _, name = await connection.run("delete_run", key, "first", 1)
    await own_store.retirement.delete(run.run_id)
    await run.begin()
    assert await connection.run("delete_keys", key, name, key) == [b"ended"]
    assert await redis.exists(key)


@pytest.mark.parametrize("deleted", ["a", "ab", "a.b", "a-b"])
async def test_runs_whose_names_begin_alike_are_deleted_apart(own_store, redis, deleted):
    runs = {name: Driver(own_store, RunId(name)) for name in ("a", "ab", "a.b", "a-b")}
    for run in runs.values():
        await fill(run)
    others = {name: await run.snapshot() for name, run in runs.items() if name != deleted}
    await own_store.retirement.delete(RunId(deleted), force=True)
    assert others == {name: await runs[name].snapshot() for name in others}
    assert sorted(summary.run_id for summary in await own_store.retirement.list_runs()) == sorted(others)
    for name in others:
        await own_store.retirement.delete(RunId(name), force=True)
    assert await redis.dbsize() == 0


async def test_a_list_says_where_each_run_stands(own_store):
    live, done = Driver(own_store, RunId("live")), Driver(own_store, RunId("done"))
    await fill(live)
    await finish(done)
    first, second = await own_store.retirement.list_runs()
    assert (first.run_id, first.finished, first.open_tasks, first.payload_bytes) == ("done", True, 0, 0)
    assert (second.run_id, second.finished, second.commit_number, second.policy_version) == ("live", False, 1, 0)
    # One of six tasks was committed and one dead-lettered; two groups hold two trajectories each, one of them leased.
    assert (second.open_tasks, second.payload_bytes, second.epoch) == (4, 4 * len(b"trajectory"), live.epoch)
    assert abs(second.create_time - time.time()) < 60
    assert 0 <= second.idle_seconds <= second.trainer_idle_seconds < 60


async def test_heartbeats_count_as_activity_and_calls_with_an_epoch_as_the_trainers(own_store, redis):
    run = Driver(own_store, RunId("demo"))
    await run.begin()
    long_ago = int((time.time() - 100) * 1000)
    await redis.hset("hr:{demo}:run", "trainer_ms", long_ago)
    (before,) = await own_store.retirement.list_runs()
    await own_store.runs.heartbeat(run.run_id, status())
    (heard,) = await own_store.retirement.list_runs()
    await run.feed(0)
    (called,) = await own_store.retirement.list_runs()
    assert before.idle_seconds >= 100
    assert heard.idle_seconds < 50 <= heard.trainer_idle_seconds
    assert called.trainer_idle_seconds < 50


async def test_runs_that_finished_long_ago_are_deleted_and_others_kept(own_url, own_store, redis):
    keeping = QueueStore(own_url, Quotas(keep_finished_seconds=50.0))
    names = ("old", "fresh", "running")
    for name in names[:2]:
        await finish(Driver(own_store, RunId(name)))
    await Driver(own_store, RunId("running")).begin()
    long_ago = int((time.time() - 100) * 1000)
    for name in ("old", "running"):
        await redis.hset(f"hr:{{{name}}}:run", "trainer_ms", long_ago)
    assert await own_store.retirement.retire() == []
    assert await keeping.retirement.retire() == ["old"]
    assert [summary.run_id for summary in await own_store.retirement.list_runs()] == ["fresh", "running"]
    await keeping.close()


async def test_a_run_that_the_server_lost_leaves_the_list(run, own_store, redis):
    await run.begin()
    await redis.delete("hr:{demo}:run")
    assert await own_store.retirement.list_runs() == []
    await own_store.retirement.retire()
    assert await redis.dbsize() == 0


async def test_a_run_of_another_format_is_refused_by_every_call_and_touched_by_none(run, own_store, redis):
    await fill(run)
    (member,) = await run.lease()
    await redis.hset("hr:{demo}:run", "format", "99")
    before = await run.snapshot()
    for call in (
        lambda: run.create("other"),
        lambda: run.put(member),
        lambda: run.feed(70),
        run.lease,
        run.batch,
        lambda: run.register(9),
        run.account,
        lambda: own_store.accounts.dead_letters(run.run_id, max_letters=9),
        lambda: own_store.retirement.delete(run.run_id),
    ):
        with pytest.raises(StateFormatError, match=r"format 99 and this queue reads format 1; .*headrace delete"):
            await call()
    await own_store._sweep(run.run_id)
    await own_store.retirement.retire()
    # What was put before the refusal waits for its time to be over, as after any put that nobody took.
    after = {key: value for key, value in (await run.snapshot()).items() if key in before}
    assert after == before
    (summary,) = await own_store.retirement.list_runs()
    assert (summary.run_id, summary.format, summary.readable) == ("demo", "99", False)
    await own_store.retirement.delete(run.run_id, force=True)
    assert await redis.dbsize() == 0


async def test_a_run_from_before_there_were_formats_is_refused_too(run, redis):
    await run.begin()
    await redis.hdel("hr:{demo}:run", "format")
    with pytest.raises(StateFormatError, match="format none"):
        await run.account()
