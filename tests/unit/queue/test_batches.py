from __future__ import annotations

import asyncio

import pytest

from services.common.errors import FencedError, InvalidInputError, ReconcileRequiredError
from services.common.types import DropReason, GroupOutcome, GroupResult, OnStale, Partition, TaskId
from services.queue.keys import run_key
from tests.unit.queue.driver import sequences


async def test_no_group_is_leased_before_enough_are_ready_and_they_come_in_order(driver):
    await driver.begin()
    await driver.feed(0, 1, 2, group_size=1)
    first, second, third = await driver.lease(3)
    await driver.put(third, second)
    batch = await driver.batch(3)
    assert (batch.groups, batch.num_ready, batch.end_of_data, batch.commit_number) == ((), 2, False, 0)
    await driver.put(first)
    batch = await driver.batch(2)
    assert (sequences(batch.groups), batch.num_ready) == ([0, 1], 1)
    assert [len(group.put_times) for group in batch.groups] == [1, 1]


async def test_a_batch_waits_for_its_groups_and_wakes_at_once(driver):
    await driver.begin()
    await driver.feed(0, group_size=1)
    waiting = asyncio.ensure_future(driver.batch(1, wait_seconds=5.0))
    await asyncio.sleep(0.3)
    before = asyncio.get_running_loop().time()
    await driver.produce()
    assert len((await waiting).groups) == 1
    assert asyncio.get_running_loop().time() - before < 0.2


async def test_a_batch_says_how_many_groups_it_misses_at_least(driver, store):
    async def missing(num_groups):
        words = (driver.epoch, Partition.TRAIN, num_groups, 0, 10**6, "request")
        return (await store._redis.run("lease_batch", run_key(driver.run_id), *words))[4]

    await driver.begin(groups_per_version=10)
    await driver.feed(*range(4), group_size=1)
    members = await driver.lease(4)
    assert [await missing(3), await missing(6)] == [3, 6]
    await driver.put(members[0])
    assert [await missing(3), await missing(6)] == [2, 5]
    # The last ones may be fewer than wanted.
    await driver.feed(end_of_data=True)
    assert [await missing(3), await missing(6)] == [2, 3]
    await driver.put(*members[1:3])
    assert await missing(6) == 1
    await driver.put(members[3])
    assert await missing(6) == 0


async def test_a_stale_group_is_refilled_as_the_next_attempt(driver):
    await driver.begin(max_staleness=1)
    await driver.feed(0)
    old = await driver.produce(version=0)
    assert sequences((await driver.batch(1, use_version=1)).groups) == [0]
    await driver.release_batch()
    assert (await driver.batch(1, use_version=2)).groups == ()
    ledger = await driver.ledger()
    assert (ledger.tasks.fed, ledger.tasks.refilled, ledger.tasks.open) == (2, 1, 1)
    assert ledger.tasks.dropped == {"stale": 1}
    assert (await driver.stats()).payload_bytes == 0
    new = await driver.lease(5, version=1)
    assert [item.key.attempt for item in new] == [1, 1]
    assert [item.min_version for item in new] == [1, 1]
    assert new[0].body == old[0].body
    await driver.put(*new, version=1)
    (group,) = (await driver.batch(1, use_version=2)).groups
    assert (group.attempt, group.oldest_version) == (1, 1)


async def test_a_stale_group_is_dropped_when_the_run_says_so(driver):
    await driver.begin(max_staleness=0, on_stale=OnStale.DROP, groups_per_version=1)
    await driver.feed(0)
    await driver.produce(version=0)
    batch = await driver.batch(1, use_version=1)
    assert batch.groups == ()
    ledger = await driver.ledger()
    assert (ledger.tasks.dropped, ledger.tasks.open, ledger.tasks.fed) == ({"stale": 1}, 0, 1)


async def test_validation_groups_have_no_age(driver):
    await driver.begin(max_staleness=0)
    await driver.feed(0, partition=Partition.VALIDATION)
    await driver.produce(version=0)
    assert len((await driver.batch(partition=Partition.VALIDATION, use_version=9)).groups) == 1


async def test_a_batch_is_paged_by_bytes_and_one_group_always_fits(driver):
    await driver.begin()
    await driver.feed(0, 1, 2, group_size=1)
    await driver.put(*await driver.lease(3), payload=b"x" * 100)
    assert sequences((await driver.batch(3, max_bytes=250)).groups) == [0, 1]
    assert sequences((await driver.batch(1, max_bytes=1)).groups) == [2]


async def test_a_request_asked_again_returns_what_it_leased(driver):
    await driver.begin()
    await driver.feed(0, 1, group_size=1)
    await driver.produce()
    first = await driver.batch(1, request_id="a")
    assert sequences(first.groups) == [0]
    assert sequences((await driver.batch(1, request_id="a")).groups) == [0]
    assert sequences((await driver.batch(1, request_id="b")).groups) == [1]
    await driver.commit(1, first.groups)
    assert (await driver.batch(1, request_id="a")).groups == ()


async def test_the_rest_is_handed_out_when_the_data_has_ended(driver):
    await driver.begin()
    await driver.feed(0, 1, 2, group_size=1, end_of_data=True)
    first, second, third = await driver.lease(3)
    await driver.put(first, second)
    assert (await driver.batch(4)).groups == ()
    await driver.put(third)
    batch = await driver.batch(2)
    assert (sequences(batch.groups), batch.end_of_data) == ([0, 1], False)
    batch = await driver.batch(2)
    assert (sequences(batch.groups), batch.end_of_data) == ([2], True)
    batch = await driver.batch(2, wait_seconds=5.0)
    assert (batch.groups, batch.end_of_data) == ((), True)


async def test_the_end_of_data_counts_only_when_all_of_it_was_accepted(driver):
    await driver.begin(groups_per_version=1)
    await driver.feed(0, 1, group_size=1, end_of_data=True)
    await driver.produce()
    batch = await driver.batch(1)
    assert (sequences(batch.groups), batch.end_of_data) == ([0], False)
    await driver.register(1)
    await driver.commit(1, batch.groups)
    await driver.feed(1, group_size=1, end_of_data=True)
    await driver.produce()
    assert (await driver.batch(1)).end_of_data


async def test_data_may_begin_again_in_validation(driver):
    await driver.begin()
    validation = Partition.VALIDATION
    await driver.feed(0, partition=validation, group_size=1, end_of_data=True)
    await driver.produce()
    batch = await driver.batch(partition=validation)
    assert batch.end_of_data
    await driver.commit(0, batch.groups, partition=validation)
    await driver.feed(1, partition=validation, group_size=1)
    assert not (await driver.batch(partition=validation)).end_of_data
    await driver.commit(0, batch.groups, partition=validation)
    ledger = await driver.ledger(validation)
    assert (ledger.tasks.consumed, ledger.trained_twice) == (1, 0)
    assert (await driver.account()).stats.commit_number == 0


async def test_a_commit_ends_groups_by_their_outcome_and_deletes_their_payloads(driver):
    await driver.begin()
    await driver.feed(0, 1, 2, 3, group_size=1)
    await driver.produce()
    a, b, c, _ = (await driver.batch(4)).groups
    results = [
        GroupResult(task_id=a.task_id, attempt=0, outcome=GroupOutcome.CONSUMED),
        GroupResult(task_id=b.task_id, attempt=0, outcome=GroupOutcome.FILTERED),
        GroupResult(task_id=c.task_id, attempt=0, outcome=GroupOutcome.DROPPED, drop_reason=DropReason.STALE),
    ]
    commit = {"epoch": driver.epoch, "partition": Partition.TRAIN, "commit_number": 1, "policy_version": 0}
    assert await driver.store.batches.commit(driver.run_id, results, **commit) == 1
    tasks = (await driver.ledger()).tasks
    assert (tasks.consumed, tasks.filtered, tasks.dropped, tasks.open) == (1, 1, {"stale": 1}, 1)
    stats = await driver.stats()
    assert (stats.leased_groups, stats.payload_bytes) == (1, len(b"trajectory"))


async def test_a_commit_number_is_applied_once(driver):
    await driver.begin()
    await driver.feed(0, 1, group_size=1)
    await driver.produce()
    groups = (await driver.batch(2)).groups
    assert await driver.commit(1, groups[:1]) == 1
    assert await driver.commit(1, groups) == 1
    ledger = await driver.ledger()
    assert (ledger.tasks.consumed, ledger.commits, ledger.trained_twice) == (1, 1, 0)
    with pytest.raises(ReconcileRequiredError, match="commit 3 does not follow 1"):
        await driver.commit(3, groups)
    assert (await driver.batch(9)).commit_number == 1


async def test_a_group_committed_under_two_numbers_is_counted(driver):
    await driver.begin()
    await driver.feed(0, group_size=1)
    await driver.produce()
    groups = (await driver.batch()).groups
    await driver.commit(1, groups)
    await driver.commit(2, groups)
    ledger = await driver.ledger()
    assert (ledger.trained_twice, ledger.tasks.consumed) == (1, 1)


async def test_leaving_out_an_older_attempt_leaves_the_new_one_alone(driver):
    await driver.begin(max_staleness=0)
    await driver.feed(0, group_size=1)
    await driver.produce(version=0)
    await driver.batch(1, use_version=1)
    result = GroupResult(task_id=TaskId("00000000"), attempt=0, outcome=GroupOutcome.FILTERED)
    commit = {"epoch": driver.epoch, "partition": Partition.TRAIN, "commit_number": 1, "policy_version": 0}
    await driver.store.batches.commit(driver.run_id, [result], **commit)
    tasks = (await driver.ledger()).tasks
    assert (tasks.open, tasks.filtered) == (1, 0)


async def test_leased_groups_of_a_dead_trainer_wait_for_its_successor(driver):
    await driver.begin()
    await driver.feed(0, 1, 2, group_size=1)
    await driver.produce()
    checkpointed = (await driver.batch(1)).groups
    await driver.batch(1)
    old = driver.epoch
    state = await driver.create(owner="trainer-2")
    assert (state.epoch, state.commit_number) == (old + 1, 0)
    assert sequences((await driver.batch(1)).groups) == [2]
    await driver.commit(1, checkpointed)
    assert await driver.release_batch() == 2
    assert await driver.release_batch() == 0
    assert sequences((await driver.batch(2)).groups) == [1, 2]
    driver.epoch = old
    with pytest.raises(FencedError):
        await driver.commit(2, checkpointed)
    with pytest.raises(FencedError):
        await driver.batch()


async def test_a_final_commit_drops_what_is_open_and_keeps_the_accounts(driver):
    await driver.begin(groups_per_version=600)
    await driver.feed(*range(600), group_size=1)
    held = await driver.lease(3)
    await driver.put(held[0])
    groups = (await driver.batch()).groups
    assert await driver.commit(1, groups, final=True) == 1
    account = await driver.account()
    ledger = account.ledgers[0]
    assert account.stats.run_finished
    assert (ledger.tasks.consumed, ledger.tasks.dropped, ledger.tasks.open) == (1, {"run_ended": 599}, 0)
    assert account.stats.partitions[0].payload_bytes == 0
    assert len(await driver.extend(*held[1:])) == 2
    assert (await driver.ledger()).trajectories.in_flight == 0
    batch = await driver.batch(wait_seconds=5.0)
    assert (batch.groups, batch.end_of_data) == ((), True)


async def test_a_run_may_also_be_ended_by_repeating_its_last_commit(driver):
    await driver.begin()
    await driver.commit(1, [])
    assert await driver.commit(1, [], final=True) == 1
    assert (await driver.account()).stats.run_finished


async def test_requests_that_can_never_work_are_refused(driver):
    await driver.begin()
    with pytest.raises(InvalidInputError, match="num_groups is 0"):
        await driver.batch(0)
    with pytest.raises(InvalidInputError, match="request_id"):
        await driver.batch(1, request_id="a/b")
    wrong = GroupResult(task_id=TaskId("a"), attempt=0, outcome=GroupOutcome.CONSUMED, drop_reason=DropReason.STALE)
    with pytest.raises(InvalidInputError, match="drop_reason"):
        await driver.store.batches.commit(
            driver.run_id, [wrong], epoch=driver.epoch, partition=Partition.TRAIN, commit_number=1, policy_version=0
        )


async def test_a_commit_of_groups_that_the_server_lost_counts_them_and_ends_their_tasks(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(0, group_size=1)
    before = await driver.snapshot()
    await driver.feed(1, 2, group_size=1)
    await driver.produce()
    groups = (await driver.batch(3)).groups
    await driver.restore(before)

    for _ in range(2):
        assert await driver.commit(1, groups) == 1

    tasks = (await driver.ledger()).tasks
    assert (tasks.fed, tasks.consumed, tasks.open) == (3, 3, 0)
    assert (await driver.feed(0, 1, 2, 3, group_size=1)).num_accepted == 4
    assert (await driver.ledger()).tasks.fed == 4


async def test_what_was_trained_on_ends_also_when_the_server_issued_it_again_meanwhile(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(0, group_size=1)
    await driver.produce()
    before = await driver.snapshot()
    groups = (await driver.batch(1)).groups
    await driver.restore(before)
    await driver.register(1)
    assert (await driver.batch(1)).groups == ()

    await driver.commit(1, groups)

    tasks = (await driver.ledger()).tasks
    assert (tasks.fed, tasks.consumed, tasks.dropped, tasks.open) == (2, 1, {"stale": 1}, 0)
    assert await driver.lease() == []


async def test_a_second_result_of_a_group_that_has_ended_changes_nothing_in_the_tables(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(0, group_size=1)
    await driver.produce()
    groups = (await driver.batch(1)).groups
    await driver.commit(1, groups, outcome=GroupOutcome.FILTERED)
    await driver.commit(2, groups, outcome=GroupOutcome.FILTERED)
    tasks = (await driver.ledger()).tasks
    assert (tasks.fed, tasks.filtered) == (1, 1)
