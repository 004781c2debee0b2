from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.common.errors import InvalidInputError, NotFoundError
from services.common.types import FailureReason, LeaseId, Partition, PutOutcome
from services.queue.keys import payload_key
from services.queue.records import PutRecord
from services.queue.store import QueueStore
from tests.unit.queue.driver import sequences

LEASE_SECONDS = 0.04


async def lapse():
    await asyncio.sleep(LEASE_SECONDS + 0.02)


async def test_a_group_is_ready_when_every_member_is_put(driver):
    await driver.begin()
    await driver.feed(0, group_size=3)
    members = await driver.lease(3)
    assert await driver.put(*members[:2]) == [PutOutcome.ACCEPTED] * 2
    assert (await driver.stats()).ready_groups == 0
    assert await driver.put(members[2]) == [PutOutcome.ACCEPTED]
    stats = await driver.stats()
    assert (stats.ready_groups, stats.open_groups, stats.payload_bytes) == (1, 0, 3 * len(b"trajectory"))


async def test_a_repeated_put_is_one_put(driver):
    await driver.begin()
    await driver.feed(0)
    members = await driver.lease(2)
    for _ in range(3):
        assert await driver.put(members[0]) == [PutOutcome.ACCEPTED]
    await driver.put(members[1])
    assert await driver.put(*members) == [PutOutcome.ACCEPTED] * 2
    ledger = (await driver.ledger()).trajectories
    assert (ledger.issued, ledger.put, ledger.duplicate) == (2, 2, 0)
    (group,) = (await driver.batch()).groups
    assert group.payloads == (b"trajectory", b"trajectory")
    assert await driver.put(members[0]) == [PutOutcome.ACCEPTED]


async def test_what_was_just_put_is_not_read_back(driver, store):
    await driver.begin()
    await driver.feed(0)
    members = await driver.lease(2)
    await driver.put(*members)
    names = [payload_key(driver.run_id, member.lease_id) for member in members]
    payloads = await store._redis.read(names)
    await store._redis._redis.delete(*names)
    (group,) = (await driver.batch()).groups
    assert list(group.payloads) == payloads == [b"trajectory"] * 2


async def test_what_is_released_and_leased_again_is_read(driver):
    await driver.begin()
    await driver.feed(0)
    await driver.produce()
    first = (await driver.batch()).groups
    await driver.release_batch()
    assert (await driver.batch()).groups == first


async def test_the_first_payload_of_a_lease_is_the_one_also_for_a_service_that_saw_only_another(driver, redis_url):
    await driver.begin()
    await driver.feed(0, group_size=1)
    members = await driver.lease()
    here, there = driver.store, QueueStore(redis_url)
    driver.store = there
    assert await driver.put(*members, payload=b"first") == [PutOutcome.ACCEPTED]
    driver.store = here
    assert await driver.put(*members, payload=b"second") == [PutOutcome.ACCEPTED]
    assert [group.payloads for group in (await driver.batch()).groups] == [(b"first",)]
    await there.close()


async def test_a_put_after_its_group_ended_leaves_nothing_behind(driver, store):
    await driver.begin()
    await driver.feed(0, group_size=1)
    (member,) = await driver.produce()
    await driver.commit(1, (await driver.batch()).groups)
    assert await driver.put(member) == [PutOutcome.DUPLICATE]
    assert await store._redis.read([payload_key(driver.run_id, member.lease_id)]) == [None]
    assert (await driver.ledger()).trajectories.duplicate == 0


async def test_a_late_result_of_a_lapsed_lease_is_taken_while_it_is_missing(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    assert (await driver.ledger()).trajectories.lapsed == 1
    assert await driver.put(old) == [PutOutcome.ACCEPTED]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.issued, ledger.put, ledger.lapsed) == (1, 1, 0)
    assert await driver.lease() == []
    assert len((await driver.batch()).groups) == 1


async def test_the_second_holder_of_a_member_is_a_duplicate_and_the_first_result_stays(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    (new,) = await driver.lease()
    assert await driver.put(old, payload=b"old") == [PutOutcome.ACCEPTED]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.put, ledger.lapsed, ledger.in_flight) == (1, 0, 1)
    assert await driver.put(new, payload=b"new") == [PutOutcome.DUPLICATE]
    assert await driver.put(new, payload=b"new") == [PutOutcome.DUPLICATE]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.issued, ledger.put, ledger.duplicate, ledger.in_flight) == (2, 1, 1, 0)
    assert (await driver.batch()).groups[0].payloads == (b"old",)


async def test_a_late_result_after_the_group_ended_moves_from_lapsed_to_duplicate(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    await driver.produce()
    await driver.commit(1, (await driver.batch()).groups)
    assert (await driver.ledger()).trajectories.lapsed == 1
    assert await driver.put(old) == [PutOutcome.DUPLICATE]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.put, ledger.duplicate, ledger.lapsed) == (1, 1, 0)


async def test_a_failure_is_issued_again_until_the_bound_and_then_given_up(driver):
    await driver.begin(max_member_issues=2)
    await driver.feed(0)
    first, second = await driver.lease(2)
    await driver.put(second)
    assert await driver.fail(first) == [PutOutcome.REISSUED]
    assert await driver.fail(first) == [PutOutcome.REISSUED]
    (again,) = await driver.lease(5)
    assert (again.key, again.issue) == (first.key, 1)
    assert await driver.fail(again, reason=FailureReason.REWARD_TIMEOUT) == [PutOutcome.GIVEN_UP]
    assert await driver.fail(again) == [PutOutcome.GIVEN_UP]
    (group,) = (await driver.batch()).groups
    assert (group.group_size, len(group.payloads)) == (2, 1)
    ledger = (await driver.ledger()).trajectories
    assert ledger.failed == {"engine_error": 1, "reward_timeout": 1}


async def test_lapses_count_towards_the_bound_of_a_poisoned_task(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS, max_member_issues=2)
    await driver.feed(0, group_size=1)
    for _ in range(2):
        assert len(await driver.lease()) == 1
        await lapse()
    assert await driver.lease() == []
    assert (await driver.ledger()).tasks.dead_lettered == 1


async def test_a_group_without_a_scored_member_is_dead_lettered_with_its_reasons(driver, store):
    await driver.begin(max_member_issues=1, groups_per_version=1)
    await driver.feed(0)
    first, second = await driver.lease(2)
    await driver.fail(first, reason=FailureReason.PROMPT_TOO_LONG)
    await driver.fail(second, reason=FailureReason.AGENT_ERROR)
    ledger = await driver.ledger()
    assert (ledger.tasks.dead_lettered, ledger.tasks.open) == (1, 0)
    (letter,) = await store.accounts.dead_letters(driver.run_id, max_letters=9)
    assert letter.task_id == "00000000"
    assert letter.reasons == ("prompt_too_long", "agent_error")
    assert (await driver.feed(1)).num_accepted == 1


async def test_a_group_with_too_few_scored_members_is_dropped_and_leaves_the_capacity(driver):
    await driver.begin(max_member_issues=1, min_group_members=2, groups_per_version=1)
    await driver.feed(0, group_size=3)
    first, second, third = await driver.lease(3)
    await driver.put(first)
    await driver.fail(second, third)
    assert (await driver.ledger()).tasks.dropped == {"too_few_members": 1}
    assert (await driver.stats()).payload_bytes == 0
    assert (await driver.feed(1)).num_accepted == 1


async def test_validation_needs_no_least_number_of_members(driver):
    await driver.begin(max_member_issues=1, min_group_members=2)
    await driver.feed(0, partition=Partition.VALIDATION)
    first, second = await driver.lease(2)
    await driver.put(first)
    await driver.fail(second)
    assert sequences((await driver.batch(partition=Partition.VALIDATION)).groups) == [0]


async def test_a_late_failure_of_a_lapsed_lease_only_moves_its_column(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS, max_member_issues=2)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    (new,) = await driver.lease()
    assert await driver.fail(old) == [PutOutcome.REISSUED]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.lapsed, ledger.failed, ledger.in_flight) == (0, {"engine_error": 1}, 1)
    assert await driver.put(new) == [PutOutcome.ACCEPTED]


async def test_a_failure_after_another_result_is_a_duplicate(driver):
    await driver.begin(lease_seconds=LEASE_SECONDS)
    await driver.feed(0, group_size=1)
    (old,) = await driver.lease()
    await lapse()
    (new,) = await driver.lease()
    await driver.put(old)
    assert await driver.fail(new) == [PutOutcome.DUPLICATE]
    ledger = (await driver.ledger()).trajectories
    assert (ledger.put, ledger.duplicate, ledger.failed) == (1, 1, {})


async def test_a_put_of_a_released_lease_is_not_counted(driver):
    await driver.begin()
    await driver.feed(0, group_size=1)
    (member,) = await driver.lease()
    await driver.release(member)
    assert await driver.put(member) == [PutOutcome.DUPLICATE]
    assert (await driver.ledger()).trajectories.put == 0
    assert len(await driver.lease()) == 1


async def test_the_oldest_version_of_a_group_is_that_of_its_oldest_member(driver):
    await driver.begin(max_staleness=5)
    await driver.feed(0, group_size=3)
    for member, version in zip(await driver.lease(3), (4, 2, 3), strict=True):
        await driver.put(member, version=version)
    assert (await driver.batch(use_version=4)).groups[0].oldest_version == 2


async def test_records_that_can_never_work_are_refused(driver):
    await driver.begin()
    await driver.feed(0)
    (member,) = await driver.lease()
    good = PutRecord(key=member.key, lease_id=member.lease_id, payload=b"x")
    for record, message in [
        (replace(good, lease_id=LeaseId("train/other/0/0/0/a")), "is not one of trajectory"),
        (replace(good, payload=b""), "neither a payload nor a failure"),
        (replace(good, payload=bytes(16 * 1024 * 1024 + 1)), "16777217 bytes"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            await driver.store.trajectories.put(driver.run_id, [record])
    assert (await driver.ledger()).trajectories.in_flight == 1


async def test_a_member_beyond_the_group_is_a_duplicate(driver):
    await driver.begin()
    await driver.feed(0, group_size=1)
    (member,) = await driver.lease()
    key = replace(member.key, member=7)
    record = PutRecord(key=key, lease_id=LeaseId(f"{key}/0/a"), payload=b"x")
    assert await driver.store.trajectories.put(driver.run_id, [record]) == (PutOutcome.DUPLICATE,)


async def test_a_lease_from_before_a_loss_of_state_is_not_the_one_given_after_it(driver):
    await driver.begin(version=54, max_staleness=2)
    fresh = await driver.snapshot()
    await driver.feed(0, group_size=1)
    old = await driver.lease()

    for state in ({}, fresh):
        await driver.restore(state)
        await driver.create(owner="trainer-2")
        await driver.register(57, branch=True)
        await driver.feed(0, group_size=1)
        new = await driver.lease()

        assert (new[0].key, new[0].issue) == (old[0].key, old[0].issue)
        assert new[0].lease_id != old[0].lease_id
        assert await driver.extend(*old) == (old[0].lease_id,)
        assert await driver.put(*old, version=54, payload=b"before") == [PutOutcome.DUPLICATE]
        assert await driver.put(*new, payload=b"after") == [PutOutcome.ACCEPTED]
        assert await driver.put(*old, version=54, payload=b"before") == [PutOutcome.DUPLICATE]
        (group,) = (await driver.batch()).groups
        assert (group.payloads, group.oldest_version) == ((b"after",), 57)
        assert len(await driver.keys("train:payload:*")) == 1


async def test_a_put_for_a_run_that_is_gone_leaves_nothing_behind(driver):
    await driver.begin()
    await driver.feed(0)
    members = await driver.lease(2)
    await driver.restore({})

    with pytest.raises(NotFoundError, match="no run"):
        await driver.put(*members)

    assert await driver.keys() == []
