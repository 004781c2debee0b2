from __future__ import annotations

import uuid

import pytest

from services.common.errors import OverloadedError, QuotaError
from services.common.types import Partition, RunId, WhenFull
from services.queue.quotas import Quotas
from services.queue.store import QueueStore
from tests.redis_server import running_server
from tests.unit.queue.driver import SETTINGS, Driver, sequences

PAYLOAD = b"x" * 100


@pytest.fixture
async def limited(redis_url):
    """Makes a run on a queue that grants a run so much."""
    stores = []

    def make(**quotas):
        store = QueueStore(redis_url, Quotas(**quotas))
        stores.append(store)
        return Driver(store, RunId(f"run-{uuid.uuid4().hex[:12]}"))

    yield make
    for store in stores:
        await store.close()


def test_no_quota_refuses_nothing():
    assert Quotas().refusal(SETTINGS, num_runs=10**9) == ""


@pytest.mark.parametrize(
    ("quotas", "sentence"),
    [
        ({"max_runs": 3}, r"holds 3 of 3 runs; delete .* raise queue\.max_runs"),
        ({"bytes_per_run": 10}, r"max_queue_bytes is 1000000000, .* grants a run 10; .*queue\.quota_bytes"),
        ({"open_tasks_per_run": 3}, r"groups_per_version is 4, .* 3 open tasks, .*queue\.quota_open_tasks"),
    ],
)
async def test_a_new_run_that_asks_for_too_much_is_told_which_bound_to_raise(limited, quotas, sentence):
    refusal = Quotas(**quotas).refusal(SETTINGS, num_runs=3)
    assert refusal
    driver = limited(**{**quotas, **({"max_runs": 1} if "max_runs" in quotas else {})})
    await limited().begin()
    with pytest.raises(QuotaError, match=sentence.replace("3 of 3", r"\d+ of 1")):
        await driver.create()
    assert await driver.keys() == []


async def test_a_run_that_is_there_already_is_taken_over_whatever_the_quotas_are_now(limited):
    driver = limited()
    await driver.create()
    strict = limited(max_runs=1, bytes_per_run=1, open_tasks_per_run=1)
    strict.run_id = driver.run_id
    assert not (await strict.create("other")).created


async def test_room_for_a_run_comes_back_with_a_deletion(tmp_path):
    with running_server(tmp_path) as url:
        store = QueueStore(url, Quotas(max_runs=1))
        first, second = Driver(store, RunId("first")), Driver(store, RunId("second"))
        await first.create()
        with pytest.raises(QuotaError):
            await second.create()
        await store.retirement.delete(first.run_id, force=True)
        assert (await second.create()).created
        await store.close()


async def test_no_more_tasks_are_open_than_granted_and_leased_ones_do_not_count(limited):
    driver = limited(open_tasks_per_run=4)
    await driver.begin(max_staleness=9)
    answer = await driver.feed(*range(6), group_size=1)
    assert (answer.num_accepted, answer.remaining_capacity) == (4, 0)
    assert (await driver.feed(*range(6), group_size=1)).num_accepted == 4
    await driver.produce()
    assert sequences((await driver.batch(4)).groups) == [0, 1, 2, 3]
    # The trainer holds four groups until its checkpoint, and gets the next batch all the same.
    assert (await driver.feed(*range(12), group_size=1)).num_accepted == 8
    await driver.produce()
    assert sequences((await driver.batch(4)).groups) == [4, 5, 6, 7]


async def test_each_partition_has_open_tasks_of_its_own(limited):
    driver = limited(open_tasks_per_run=4)
    await driver.begin(max_staleness=9)
    assert (await driver.feed(*range(6))).num_accepted == 4
    assert (await driver.feed(*range(6), partition=Partition.VALIDATION)).num_accepted == 4


@pytest.mark.parametrize("when_full", [WhenFull.BLOCK, WhenFull.DROP_OLDEST])
async def test_at_the_quota_no_group_begins_and_begun_ones_may_finish(limited, when_full):
    driver = limited(bytes_per_run=300)
    await driver.begin(max_staleness=9, max_queue_bytes=300, when_full=when_full)
    await driver.feed(*range(6), group_size=2)
    await driver.put(*await driver.lease(2), payload=PAYLOAD)
    leased = (await driver.batch(1)).groups
    await driver.put(*await driver.lease(1), payload=PAYLOAD)
    (rest,) = await driver.lease(9)
    assert (rest.key.task_id, rest.key.member) == ("00000001", 1)
    await driver.put(rest, payload=PAYLOAD)
    assert await driver.lease(9) == []
    await driver.commit(1, leased)
    assert len(await driver.lease(9)) == 8


async def test_at_the_quota_a_batch_that_the_trainer_waits_for_begins_all_the_same(limited):
    driver = limited(bytes_per_run=300)
    await driver.begin(max_staleness=9, max_queue_bytes=300)
    await driver.feed(*range(8), group_size=1)
    await driver.put(*await driver.lease(3), payload=PAYLOAD)
    assert await driver.lease(9) == []
    assert (await driver.batch(5)).groups == ()
    await driver.put(*await driver.lease(9), payload=PAYLOAD)
    assert len((await driver.batch(5)).groups) == 5


async def test_at_the_quota_measurements_go_on(limited):
    driver = limited(bytes_per_run=100)
    await driver.begin(max_staleness=9, max_queue_bytes=100)
    await driver.feed(0, 1, group_size=1)
    await driver.put(*await driver.lease(1), payload=PAYLOAD)
    await driver.feed(0, group_size=1, partition=Partition.VALIDATION)
    (member,) = await driver.lease(9)
    assert member.key.partition is Partition.VALIDATION


async def test_at_twice_the_quota_payloads_wait_failures_do_not_and_a_commit_makes_room(limited):
    driver = limited(bytes_per_run=100)
    await driver.begin(max_staleness=9, max_queue_bytes=100, max_member_issues=1)
    await driver.feed(*range(3), group_size=2)
    members = await driver.lease(2)
    assert (await driver.batch(3)).groups == ()
    members += await driver.lease(9)
    await driver.put(*members[:2], payload=PAYLOAD)
    before = await driver.keys()
    with pytest.raises(OverloadedError, match=r"twice its quota.*queue\.quota_bytes"):
        await driver.put(members[2], members[3], payload=PAYLOAD)
    assert await driver.keys() == before
    with pytest.raises(OverloadedError, match=r"holds 200 bytes .* quota of 100; .*trainer\.checkpoint_every"):
        await driver.batch(2)
    assert await driver.fail(members[3]) == ["given_up"]
    await driver.commit(1, (await driver.batch(1)).groups)
    await driver.put(members[2], payload=PAYLOAD)
    assert (await driver.stats()).payload_bytes == 100
    await driver.account()


async def test_a_service_with_other_quotas_enforces_its_own_from_its_first_sweep_on(limited):
    driver = limited(open_tasks_per_run=4)
    await driver.begin(max_staleness=9)
    raised = limited(open_tasks_per_run=6)
    await raised.store.runs.sweep(driver.run_id)
    assert (await driver.feed(*range(9), group_size=1)).num_accepted == 6
