"""`on_stale = wait`: a batch is held rather than let a begun group become too old."""

from __future__ import annotations

import pytest

from services.common.errors import OverloadedError
from services.common.types import DropReason, FailureReason, OnStale, ReleaseReason
from services.queue.quotas import Quotas
from services.queue.store import QueueStore
from tests.unit.queue.driver import sequences


async def begin(driver, **changes):
    """A run with two groups per version and a bound of one."""
    settings = {"on_stale": OnStale.WAIT, "max_staleness": 1, "groups_per_version": 2, "lease_seconds": 3000.0}
    await driver.begin(**settings | changes)


async def begun(driver, *tasks, version=None):
    """Feed tasks of one member, lease them all; returns the leases in order of sequence."""
    assert (await driver.feed(*tasks, group_size=1)).num_accepted == len(tasks)
    leases = await driver.lease(len(tasks), version=version)
    assert len(leases) == len(tasks)
    return leases


async def two_behind(driver, **changes):
    """Version 1; 0 and 1 were begun at 0 and are unfinished, 2 and 3 were used at 0, 4 and 5 are ready."""
    await begin(driver, **changes)
    slow, slower, *fast = await begun(driver, 0, 1, 2, 3)
    await driver.put(*fast)
    assert sequences((await driver.batch(2)).groups) == [2, 3]
    await driver.register(1)
    await driver.put(*await begun(driver, 4, 5))
    return slow, slower


async def test_a_batch_is_held_for_groups_that_the_next_version_would_make_too_old(driver):
    slow, slower = await two_behind(driver)
    assert (await driver.batch(2)).groups == ()
    assert (await driver.stats()).held_for_groups == 2
    await driver.put(slow, version=0)
    assert (await driver.batch(2)).groups == ()
    assert (await driver.stats()).held_for_groups == 1
    await driver.put(slower, version=0)
    batch = await driver.batch(2)
    assert (sequences(batch.groups), batch.num_ready) == ([0, 1], 2)
    assert (await driver.stats()).held_for_groups == 0
    await driver.register(2)
    assert sequences((await driver.batch(2)).groups) == [4, 5]
    assert await driver.nothing_was_stale()


async def test_the_same_groups_are_overtaken_and_refilled_without_waiting(driver):
    slow, slower = await two_behind(driver, on_stale=OnStale.REFILL)
    assert sequences((await driver.batch(2)).groups) == [4, 5]
    await driver.register(2)
    await driver.put(slow, slower, version=0)
    assert (await driver.batch(2)).groups == ()
    assert (await driver.ledger()).tasks.dropped == {DropReason.STALE: 2}


async def test_a_batch_of_several_per_version_is_held_only_when_the_rest_would_not_do(driver):
    """Two steps of one group per version: the first need not wait for the one that the second can take."""
    await begin(driver)
    slow, *fast = await begun(driver, 0, 1, 2, 3)
    await driver.put(*fast)
    assert sequences((await driver.batch(1)).groups) == [1]
    assert sequences((await driver.batch(1)).groups) == [2]
    await driver.register(1)
    await driver.put(*await begun(driver, 4, 5))
    assert sequences((await driver.batch(1)).groups) == [3]
    assert (await driver.batch(1)).groups == ()
    await driver.put(slow, version=0)
    assert sequences((await driver.batch(1)).groups) == [0]
    assert await driver.nothing_was_stale()


async def test_a_due_group_of_high_sequence_goes_before_others_when_slots_are_scarce(driver):
    await begin(driver)
    await driver.feed(0, group_size=1)
    await driver.feed(1, 2, 3, group_size=1)
    leases = await driver.lease(4)
    await driver.put(*leases[1:3])
    await driver.batch(2)
    await driver.register(1)
    await driver.put(leases[0], version=1)
    await driver.put(*await begun(driver, 4, 5))
    # 3 was begun at version 0 and is not ready; 0 may still be used at version 2.
    assert sequences((await driver.batch(1)).groups) == [0]
    assert (await driver.batch(1)).groups == ()
    await driver.put(leases[3], version=0)
    assert sequences((await driver.batch(1)).groups) == [3]


async def test_slots_of_later_versions_are_kept_too(driver):
    """Nobody is due now, but those due at the next version would be more than its slots."""
    await begin(driver, max_staleness=2)
    leases = await begun(driver, *range(6))
    await driver.put(*leases[:2])
    assert sequences((await driver.batch(2)).groups) == [0, 1]
    await driver.register(1)
    await driver.put(*await begun(driver, 6, 7))
    assert (await driver.batch(2)).groups == ()
    assert (await driver.stats()).held_for_groups == 4
    await driver.put(leases[2], version=0)
    assert (await driver.batch(2)).groups == ()
    await driver.put(leases[5], version=0)
    assert sequences((await driver.batch(2)).groups) == [2, 5]
    await driver.register(2)
    await driver.put(*leases[3:5], version=0)
    assert sequences((await driver.batch(2)).groups) == [3, 4]
    assert await driver.nothing_was_stale()


async def test_a_lapsed_lease_ends_the_wait_and_the_group_may_be_refilled(driver):
    slow, slower = await two_behind(driver)
    await driver.put(slow, version=0)
    assert (await driver.batch(2)).groups == ()
    await driver.expire(slower)
    assert sequences((await driver.batch(2)).groups) == [0, 4]
    await driver.register(2)
    await driver.put(slower, version=0)
    assert (await driver.batch(2)).groups == ()
    ledger = await driver.ledger()
    assert (ledger.tasks.dropped, ledger.tasks.refilled) == ({DropReason.STALE: 1}, 1)
    (again,) = await driver.lease(9)
    assert (again.key.task_id, again.key.attempt) == (slower.key.task_id, 1)
    await driver.put(again)
    assert await driver.keys("train:spent") == []
    assert sequences((await driver.batch(2)).groups) == [1, 5]


async def test_what_nobody_waits_for_takes_no_slot_of_those_that_are_waited_for(driver):
    """A lapsed group that comes back in time is used in time only if a slot is left."""
    await begin(driver)
    lapsed, slow, *fast = await begun(driver, 0, 1, 2, 3)
    await driver.put(*fast)
    await driver.batch(2)
    await driver.register(1)
    await driver.expire(lapsed)
    await driver.feed(4, group_size=1)
    again, other = await driver.lease(2)
    assert again.key == lapsed.key
    await driver.put(other)
    assert sequences((await driver.batch(1)).groups) == [4]
    await driver.put(lapsed, version=0)
    assert (await driver.batch(1)).groups == ()
    await driver.put(slow, version=0)
    assert sequences((await driver.batch(1)).groups) == [1]
    await driver.register(2)
    assert (await driver.batch(1)).groups == ()
    assert (await driver.ledger()).tasks.dropped == {DropReason.STALE: 1}


@pytest.mark.parametrize("ending", ["dead_lettered", "too_few_members"])
async def test_a_group_that_is_given_up_is_waited_for_no_longer(driver, ending):
    few = ending == "too_few_members"
    await begin(driver, max_member_issues=1, min_group_members=2 if few else 1)
    await driver.feed(0, 1, 2, 3)
    leases = await driver.lease(8)
    await driver.put(*leases[4:])
    await driver.batch(2)
    await driver.register(1)
    await driver.feed(4, 5)
    await driver.produce()
    await driver.put(*leases[2:4], version=0)
    assert (await driver.batch(2)).groups == ()
    if few:
        await driver.put(leases[0], version=0)
    await driver.fail(*leases[few:2])
    assert sequences((await driver.batch(2)).groups) == [1, 4]


async def test_a_failed_or_returned_member_is_issued_again_and_waited_for(driver):
    slow, slower = await two_behind(driver)
    await driver.fail(slow, reason=FailureReason.ENGINE_ERROR)
    await driver.release(slower, reason=ReleaseReason.DRAIN)
    assert (await driver.batch(2)).groups == ()
    await driver.put(*await driver.lease(2, version=1))
    assert sequences((await driver.batch(2)).groups) == [0, 1]


async def test_all_members_of_a_group_are_for_the_version_of_the_first_or_newer(driver):
    await begin(driver)
    await driver.feed(0, 1, 2, 3)
    await driver.put(*await driver.lease(4))
    await driver.batch(2)
    await driver.register(1)
    assert [item.key.member for item in await driver.lease(1, version=0)] == [0]
    assert [item.key.member for item in await driver.lease(1, version=1)] == [1]
    assert [item.key.member for item in await driver.lease(1, version=1)] == [0]
    assert await driver.lease(1, version=0) == [], "the other member of 3"
    (other,) = await driver.lease(1, version=1)
    assert (other.key.task_id, other.key.member) == ("00000003", 1)


async def test_an_older_replica_begins_only_what_still_has_a_slot(driver):
    slow, slower = await two_behind(driver)
    await driver.put(slow, version=0)
    await driver.expire(slower)
    assert sequences((await driver.batch(2)).groups) == [0, 4]
    await driver.register(2)
    await driver.feed(6, 7, group_size=1)
    again, *others = await driver.lease(3)
    assert again.key == slower.key
    await driver.put(*others)
    assert sequences((await driver.batch(1)).groups) == [5]
    await driver.put(slower, version=0)
    assert sequences((await driver.batch(1)).groups) == [6], "1 is refilled, and 6 has the last slot of version 2"
    found = await driver.store.tasks.lease(driver.run_id, max_members=1, policy_version=1)
    assert (found.assignments, found.wanted_version) == ((), 2)
    (again,) = await driver.lease(1)
    assert (again.key.task_id, again.key.attempt) == (slower.key.task_id, 1)


async def test_a_bound_of_zero_needs_no_holding(driver):
    await begin(driver, max_staleness=0)
    slow, fast = await begun(driver, 0, 1)
    await driver.put(fast)
    assert sequences((await driver.batch(1)).groups) == [1]
    assert (await driver.batch(1)).groups == ()
    assert (await driver.stats()).held_for_groups == 0
    await driver.put(slow)
    assert sequences((await driver.batch(1)).groups) == [0]
    await driver.register(1)
    await driver.put(*await begun(driver, 2, 3))
    assert sequences((await driver.batch(2)).groups) == [2, 3]


async def test_a_batch_comes_in_pages_and_keeps_the_slots_between_them(driver):
    slow, slower = await two_behind(driver)
    await driver.put(slow, version=0, payload=b"x" * 100)
    assert sequences((await driver.batch(1, max_bytes=1)).groups) == [0]
    assert (await driver.batch(1, max_bytes=1)).groups == ()
    await driver.put(slower, version=0)
    assert sequences((await driver.batch(1, max_bytes=1)).groups) == [1]


async def test_pages_of_one_batch_skip_what_has_no_slot(driver):
    await begin(driver, groups_per_version=3)
    leases = await begun(driver, *range(6))
    await driver.put(leases[1], leases[2], leases[3])
    await driver.batch(3)
    await driver.register(1)
    # 0 was sampled by version 1 after all, so it is not due; 4 and 5 are.
    await driver.put(leases[0], version=1)
    await driver.put(*await begun(driver, 6, 7, 8))
    await driver.put(*leases[4:], version=0)
    first = await driver.batch(3, max_bytes=15)
    second = await driver.batch(2, max_bytes=25)
    assert (sequences(first.groups), sequences(second.groups)) == ([0], [4, 5])


async def test_the_rest_is_handed_out_at_the_end_of_the_data(driver):
    slow, slower = await two_behind(driver)
    await driver.feed(end_of_data=True)
    await driver.put(slow, version=0)
    assert (await driver.batch(2)).groups == ()
    await driver.put(slower, version=0)
    assert sequences((await driver.batch(3)).groups) == [0, 1, 4]
    batch = await driver.batch(3)
    assert (sequences(batch.groups), batch.end_of_data) == ([5], True)


async def test_a_trainer_that_asks_for_more_than_the_slots_gets_it_once_none_is_unfinished(driver):
    """It will filter some of what it leased."""
    slow, slower = await two_behind(driver)
    await driver.put(slow, slower, version=0)
    assert sequences((await driver.batch(2)).groups) == [0, 1]
    assert sequences((await driver.batch(2)).groups) == [4, 5]


async def test_what_replaces_filtered_groups_begins_once_the_trainer_waits_for_it(driver):
    """Those that it filtered hold their slots until the commit."""
    await begin(driver, max_staleness=0)
    await driver.put(*await begun(driver, 0, 1))
    await driver.batch(2)
    assert (await driver.feed(2, 3, group_size=1, num_filtered=2)).num_accepted == 2
    assert await driver.lease(2) == []
    assert (await driver.batch(2)).groups == ()
    await driver.put(*await driver.lease(2))
    assert sequences((await driver.batch(2)).groups) == [2, 3]


async def test_a_full_queue_holds_back_only_fresh_groups(driver):
    await begin(driver, max_queue_size=1, groups_per_version=4)
    await driver.feed(0, 1, 2, 3, 4)
    first = await driver.lease(3)
    await driver.put(*first[:2])
    await driver.batch(4)
    # 1 is begun and its second member goes on; 2, 3 and 4 begin only as the batch needs them.
    rest = await driver.lease(99)
    assert [item.key.task_id[-1] for item in rest] == ["1", "2", "2", "3", "3"]
    await driver.put(first[2], *rest)
    await driver.register(1)
    assert len((await driver.batch(4, use_version=0)).groups) == 4


async def test_nothing_is_waited_for_while_the_quota_refuses_payloads(driver, redis_url):
    strict = QueueStore(redis_url, Quotas(bytes_per_run=len(b"trajectory")))
    try:
        slow, _ = await two_behind(driver)
        assert (await driver.batch(2)).groups == ()
        await strict.runs.sweep(driver.run_id)
        with pytest.raises(OverloadedError):
            await driver.put(slow, version=0)
        assert sequences((await driver.batch(2)).groups) == [4, 5]
    finally:
        await strict.close()


async def test_after_a_branch_what_is_too_old_is_refilled_and_holds_nothing(driver):
    slow, slower = await two_behind(driver)
    await driver.create(owner="trainer-2")
    await driver.release_batch()
    await driver.register(2, branch=True)
    # 2 and 3 were released and are of version 0, as are the unfinished 0 and 1; 4 and 5 may still be used.
    assert (await driver.batch(3)).groups == ()
    assert (await driver.ledger()).tasks.refilled == 2
    await driver.put(*await driver.lease(2))
    assert sequences((await driver.batch(3)).groups) == [2, 4, 5]
    await driver.put(slow, slower, version=0)
    await driver.batch(2)
    assert (await driver.ledger()).tasks.refilled == 4


async def test_after_a_branch_no_more_begins_than_has_slots(driver):
    """The abandoned versions left more open than the versions from the branch on will use."""
    await begin(driver)
    await driver.put(*await begun(driver, 0, 1, 2, 3))
    await driver.batch(2)
    await driver.register(1)
    await driver.feed(4, 5, group_size=1)
    await driver.create(owner="trainer-2")
    await driver.release_batch()
    await driver.register(2, branch=True)
    assert (await driver.batch(2)).groups == ()
    leases = await driver.lease(99)
    assert len(leases) == 4
    assert await driver.lease(99) == []
    await driver.put(*leases)
    assert len((await driver.batch(2)).groups) == 2
    await driver.register(3)
    assert len(await driver.lease(99)) == 2
    assert len((await driver.batch(2)).groups) == 2
    assert (await driver.ledger()).tasks.refilled == 4, "each of those of version 0, once"


async def test_commits_do_not_change_the_slots(driver):
    slow, slower = await two_behind(driver)
    released = await driver.release_batch()
    assert released == 2
    groups = (await driver.batch(2, use_version=0)).groups
    await driver.commit(1, groups)
    assert (await driver.batch(2)).groups == ()
    await driver.put(slow, slower, version=0)
    assert sequences((await driver.batch(2)).groups) == [0, 1]
