from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.common.errors import ConflictError, FencedError, InvalidInputError, NotFoundError, RunFinishedError
from services.common.types import GroupOutcome, LeaseId, Partition, PutOutcome, ReleaseReason, WhenFull
from tests.unit.queue.driver import sequences, stored_task

LEASE_SECONDS = 0.04


async def lapse(seconds=LEASE_SECONDS):
    await asyncio.sleep(seconds + 0.02)


def keys(assignments):
    return [(item.key.task_id, item.key.member) for item in assignments]


async def test_feeding_stops_at_the_capacity_of_the_staleness_bound(driver):
    await driver.begin(max_staleness=1, groups_per_version=4)
    answer = await driver.feed(*range(10))
    assert (answer.num_accepted, answer.remaining_capacity) == (8, 0)
    await driver.register(1)
    answer = await driver.feed(*range(8, 20))
    assert (answer.num_accepted, answer.remaining_capacity) == (4, 0)


async def test_a_commit_moves_the_capacity_to_its_position(driver):
    await driver.begin(groups_per_version=2)
    await driver.feed(0, 1)
    await driver.produce()
    groups = (await driver.batch(2)).groups
    assert (await driver.feed(2)).num_accepted == 0
    await driver.register(1)
    assert (await driver.feed(2, 3, 4)).num_accepted == 2
    await driver.commit(1, groups)
    assert (await driver.feed(4)).num_accepted == 0


async def test_a_commit_between_two_versions_does_not_admit_what_would_be_too_old(driver):
    await driver.begin(groups_per_version=4)
    await driver.feed(0, 1, 2, 3)
    await driver.produce()
    await driver.commit(1, (await driver.batch(2)).groups, policy_version=0)
    assert (await driver.feed(4, 5)).num_accepted == 0
    await driver.register(1)
    assert (await driver.feed(4, 5, 6, 7, 8)).num_accepted == 4
    await driver.commit(2, (await driver.batch(2, use_version=0)).groups, policy_version=1)
    assert (await driver.feed(8)).num_accepted == 0


async def test_what_an_abandoned_branch_had_fed_ahead_is_used_one_version_after_another(driver):
    await driver.begin(groups_per_version=2)
    await driver.feed(0, 1)
    await driver.produce()
    await driver.batch(2)
    await driver.register(1)
    await driver.feed(2, 3)
    await driver.produce(version=1)
    await driver.create("trainer-2")
    await driver.release_batch()
    # Both versions' worth of groups are too old for the branch, and sampled again for one version each.
    await driver.register(5, branch=True)
    assert (await driver.batch(2)).groups == ()
    assert keys(await driver.lease(100)) == [("00000000", 0), ("00000000", 1), ("00000001", 0), ("00000001", 1)]
    assert [item.min_version for item in await driver.lease(100, version=6)] == [6, 6, 6, 6]


async def test_a_version_that_is_told_again_as_a_branch_changes_nothing(driver):
    await driver.begin(groups_per_version=2)
    await driver.create("trainer-2")
    await driver.register(5, branch=True)
    await driver.feed(0, 1)
    await driver.produce()
    await driver.commit(1, (await driver.batch(1)).groups, policy_version=5)
    await driver.register(5, branch=True)
    assert (await driver.feed(2)).num_accepted == 0, "what was trained on since the base still counts"


async def test_filtered_groups_leave_the_capacity_before_and_after_their_commit(driver):
    await driver.begin(groups_per_version=2)
    await driver.feed(0, 1)
    await driver.produce()
    groups = (await driver.batch(2)).groups
    assert (await driver.feed(2, 3)).num_accepted == 0
    assert (await driver.feed(2, 3, num_filtered=1)).num_accepted == 1
    await driver.commit(1, groups, outcome=GroupOutcome.FILTERED)
    assert (await driver.feed(3)).num_accepted == 1


async def test_feeding_the_same_task_again_is_accepted_and_adds_nothing(driver):
    await driver.begin()
    await driver.feed(0, 1)
    assert (await driver.feed(0, 1)).num_accepted == 2
    await driver.produce()
    await driver.commit(1, (await driver.batch(2)).groups)
    assert (await driver.feed(0, 1)).num_accepted == 2
    ledger = await driver.ledger()
    assert (ledger.tasks.fed, ledger.tasks.consumed, ledger.tasks.open) == (2, 2, 0)


async def test_the_same_id_with_other_content_is_a_conflict_and_adds_nothing(driver):
    await driver.begin()
    await driver.feed(1)
    with pytest.raises(ConflictError, match="00000001"):
        await driver.feed(tasks=[stored_task(0), stored_task(1, body=b"other")])
    with pytest.raises(ConflictError, match="other-id"):
        await driver.feed(tasks=[replace(stored_task(1), task_id="other-id")])
    assert (await driver.ledger()).tasks.fed == 1


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([stored_task(1), stored_task(0)], "growing order"),
        ([stored_task(-1)], "growing order"),
        ([replace(stored_task(0), group_size=0)], "group_size"),
        ([replace(stored_task(0), task_id="a/b")], "task_id"),
        ([stored_task(0), replace(stored_task(1), task_id="00000000")], "twice"),
        ([stored_task(number) for number in range(5000)], "5000 tasks"),
        ([stored_task(0, partition=Partition.VALIDATION)], "of partition validation in a call for train"),
    ],
)
async def test_tasks_that_can_never_work_are_refused(driver, tasks, message):
    await driver.begin()
    with pytest.raises(InvalidInputError, match=message):
        await driver.feed(tasks=tasks)


async def test_members_are_leased_in_order_of_sequence_and_member(driver):
    await driver.begin()
    await driver.feed(0, 1, group_size=3)
    first = await driver.lease(2)
    second = await driver.lease(10)
    assert keys(first) == [("00000000", 0), ("00000000", 1)]
    assert keys(second) == [("00000000", 2), ("00000001", 0), ("00000001", 1), ("00000001", 2)]
    assert first[0].body == b"body of 0"
    assert first[0].lease_id == LeaseId(f"train/00000000/0/0/0/{first[0].token}")
    assert first[0].enqueue_time <= first[0].issue_time


async def test_validation_members_go_first(driver):
    await driver.begin()
    await driver.feed(0)
    await driver.feed(0, partition=Partition.VALIDATION, group_size=1, pinned_version=0)
    assert [item.key.partition for item in await driver.lease(3)] == ["validation", "train", "train"]


async def test_validation_has_no_capacity_and_waits_for_its_pinned_version(driver):
    await driver.begin(groups_per_version=1)
    answer = await driver.feed(*range(20), partition=Partition.VALIDATION, group_size=1, pinned_version=3)
    assert answer.num_accepted == 20
    found = await driver.store.tasks.lease(driver.run_id, max_members=4, policy_version=2)
    assert (found.assignments, found.wanted_version) == ((), 3)
    assert len(await driver.lease(4, version=3)) == 4


async def test_a_replica_that_is_too_old_gets_nothing_and_learns_which_version_is_wanted(driver):
    await driver.begin(version=5, max_staleness=1, groups_per_version=1)
    await driver.feed(0, 1)
    await driver.register(6)
    await driver.feed(2)
    found = await driver.store.tasks.lease(driver.run_id, max_members=10, policy_version=4)
    assert (found.assignments, found.wanted_version) == ((), 5)
    assert [item.min_version for item in await driver.lease(10, version=5)] == [5, 5, 5, 5]
    found = await driver.store.tasks.lease(driver.run_id, max_members=10, policy_version=5)
    assert (found.assignments, found.wanted_version) == ((), 6)
    assert len(await driver.lease(10, version=6)) == 2


async def test_work_that_would_be_stale_by_the_newest_version_is_not_leased(driver):
    await driver.begin(max_staleness=1, groups_per_version=4)
    await driver.feed(0)
    await driver.register(2)
    found = await driver.store.tasks.lease(driver.run_id, max_members=1, policy_version=0)
    assert found.wanted_version == 1


async def test_a_lapsed_member_and_only_it_is_issued_again(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=3)
    kept, lost, _ = await driver.lease(3)
    await driver.put(kept)
    await lapse()
    again = await driver.lease(10)
    assert keys(again) == [("00000000", 1), ("00000000", 2)]
    assert again[0].lease_id == LeaseId(f"train/00000000/0/1/1/{again[0].token}")
    assert again[0].issue == lost.issue + 1
    ledger = (await driver.ledger()).trajectories
    assert (ledger.issued, ledger.put, ledger.lapsed, ledger.in_flight) == (5, 1, 2, 2)


async def test_issued_again_members_go_before_newer_groups(driver):
    await driver.begin()
    await driver.feed(0, 1)
    first = await driver.lease(2)
    await driver.release(first[1])
    assert keys(await driver.lease(2)) == [("00000000", 1), ("00000001", 0)]


async def test_renewed_leases_do_not_lapse(driver):
    await driver.begin(lease_seconds=0.15)
    await driver.feed(0)
    members = await driver.lease(2)
    for _ in range(4):
        await asyncio.sleep(0.06)
        assert await driver.extend(*members) == ()
    assert (await driver.ledger()).trajectories.in_flight == 2


async def test_renewing_tells_which_leases_are_lost(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0)
    old = await driver.lease(2)
    await lapse()
    new = await driver.lease(2)
    assert await driver.extend(*old) == tuple(item.lease_id for item in old)
    await driver.put(old[0])
    assert await driver.extend(*new) == (new[0].lease_id,)
    ledger = (await driver.ledger()).trajectories
    assert (ledger.put, ledger.duplicate, ledger.lapsed, ledger.in_flight) == (1, 1, 1, 1)


async def test_a_renewal_before_any_sweep_saves_an_overdue_lease(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0)
    members = await driver.lease(2)
    await lapse()
    assert await driver.extend(*members) == ()


async def test_released_members_count_by_reason_and_against_nobody(driver):
    await driver.begin(max_member_issues=1)
    await driver.feed(0, group_size=1)
    for issue in range(5):
        (member,) = await driver.lease()
        assert member.issue == issue
        reason = ReleaseReason.STALE if issue % 2 else ReleaseReason.DRAIN
        assert await driver.release(member, reason=reason) == 1
        assert await driver.release(member, reason=reason) == 0
    assert (await driver.ledger()).trajectories.released == {"drain": 3, "stale": 2}


async def test_a_lease_waits_for_work_and_wakes_at_once(driver):
    await driver.begin()
    waiting = asyncio.ensure_future(driver.lease(2, wait_seconds=5.0))
    await asyncio.sleep(0.3)
    before = asyncio.get_running_loop().time()
    await driver.feed(0)
    assert len(await waiting) == 2
    assert asyncio.get_running_loop().time() - before < 0.2


async def test_a_lease_ends_empty_after_its_wait(driver):
    await driver.begin()
    assert await driver.lease(wait_seconds=0.05) == []
    with pytest.raises(InvalidInputError, match="wait_seconds is 31"):
        await driver.lease(wait_seconds=31)
    with pytest.raises(InvalidInputError, match="max_members is 0"):
        await driver.lease(0)


async def test_block_leases_no_member_of_a_new_group_while_the_queue_is_full(driver):
    await driver.begin(max_queue_size=1, groups_per_version=8)
    await driver.feed(0, 1, 2)
    first = await driver.lease(3)
    await driver.put(*first[:2])
    assert keys(await driver.lease(10)) == [("00000001", 1)]
    assert await driver.lease(10) == []
    assert sequences((await driver.batch(1)).groups) == [0]
    assert len(await driver.lease(10)) == 2


async def test_block_counts_bytes_too(driver):
    await driver.begin(max_queue_bytes=100, groups_per_version=8)
    await driver.feed(0, 1, group_size=1)
    await driver.put(*await driver.lease(1), payload=b"x" * 100)
    assert await driver.lease(10) == []
    await driver.batch(1)
    assert len(await driver.lease(10)) == 1


async def test_block_lets_a_batch_that_is_waited_for_pass_the_bound(driver):
    await driver.begin(max_queue_size=1, groups_per_version=8)
    await driver.feed(*range(5), group_size=1)
    assert (await driver.batch(3)).groups == ()
    assert keys(await driver.produce(1)) == [("00000000", 0)]
    assert keys(await driver.produce(10)) == [("00000001", 0), ("00000002", 0)]
    assert sequences((await driver.batch(3)).groups) == [0, 1, 2]


async def test_drop_oldest_makes_room_for_the_newer_group(driver):
    await driver.begin(max_queue_size=2, groups_per_version=8, when_full=WhenFull.DROP_OLDEST)
    await driver.feed(*range(4), group_size=1)
    held = (await driver.lease(1))[0]
    await driver.put(held)
    assert sequences((await driver.batch(1)).groups) == [0]
    await driver.produce()
    assert (await driver.ledger()).tasks.dropped == {"queue_full": 1}
    assert sequences((await driver.batch(2)).groups) == [2, 3]


async def test_drop_oldest_keeps_to_the_bytes_too(driver):
    await driver.begin(max_queue_bytes=100, groups_per_version=8, when_full=WhenFull.DROP_OLDEST)
    await driver.feed(*range(3), group_size=1)
    await driver.put(*await driver.lease(3), payload=b"x" * 60)
    assert (await driver.ledger()).tasks.dropped == {"queue_full": 2}
    assert (await driver.stats()).payload_bytes == 60


async def test_an_unknown_run_and_an_old_epoch_are_refused(driver):
    with pytest.raises(NotFoundError, match="no run"):
        await driver.lease()
    await driver.begin()
    old = driver.epoch
    await driver.create(owner="trainer-2")
    driver.epoch = old
    with pytest.raises(FencedError, match="taken over"):
        await driver.feed(0)


async def test_a_finished_run_takes_no_tasks_and_tells_rollouters(driver):
    await driver.begin()
    await driver.feed(0)
    await driver.commit(1, [], final=True)
    found = await driver.store.tasks.lease(driver.run_id, max_members=1, policy_version=0, wait_seconds=5.0)
    assert found.run_finished
    with pytest.raises(RunFinishedError):
        await driver.feed(1)


async def test_a_put_of_a_foreign_lease_is_refused(driver):
    await driver.begin()
    await driver.feed(0)
    with pytest.raises(InvalidInputError, match="lease_id"):
        await driver.store.tasks.extend(driver.run_id, [LeaseId("nonsense")])
    nobody = LeaseId("train/nobody/0/0/0/f")
    assert await driver.store.tasks.extend(driver.run_id, [nobody]) == (nobody,)
    assert await driver.store.tasks.extend(driver.run_id, []) == ()
    assert await driver.store.tasks.release(driver.run_id, [], ReleaseReason.DRAIN) == 0


async def test_a_lapse_of_a_member_that_is_done_counts_as_duplicate(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    (new,) = await driver.lease()
    assert await driver.put(old) == [PutOutcome.ACCEPTED]
    await lapse()
    ledger = (await driver.ledger()).trajectories
    assert (ledger.put, ledger.duplicate, ledger.lapsed, ledger.in_flight) == (1, 1, 0, 0)
    assert await driver.put(new) == [PutOutcome.DUPLICATE]
    assert (await driver.ledger()).trajectories == ledger
