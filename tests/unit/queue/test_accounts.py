from __future__ import annotations

from services.common.types import Partition


async def test_a_new_run_has_empty_and_balanced_accounts(driver):
    await driver.create()
    account = await driver.account()
    assert [ledger.partition for ledger in account.ledgers] == [Partition.TRAIN, Partition.VALIDATION]
    for ledger in account.ledgers:
        assert (ledger.lost, ledger.trained_twice, ledger.commits) == (0, 0, 0)
        assert (ledger.tasks.dropped, ledger.trajectories.failed, ledger.trajectories.released) == ({}, {}, {})
    assert account.stats.replicas == ()
    assert account.stats.policy_version == -1


async def test_depths_follow_a_group_through_the_queue(driver):
    await driver.begin()

    async def depths():
        stats = await driver.stats()
        return (
            stats.pending_members,
            stats.in_flight_members,
            stats.open_groups,
            stats.ready_groups,
            stats.leased_groups,
        )

    await driver.feed(0, group_size=3)
    assert await depths() == (3, 0, 1, 0, 0)
    first, second = await driver.lease(2)
    assert await depths() == (1, 2, 1, 0, 0)
    await driver.release(second)
    assert await depths() == (2, 1, 1, 0, 0)
    await driver.put(first, *await driver.lease(2))
    assert await depths() == (0, 0, 0, 1, 0)
    groups = (await driver.batch()).groups
    assert await depths() == (0, 0, 0, 0, 1)
    await driver.commit(1, groups)
    assert await depths() == (0, 0, 0, 0, 0)


async def test_partitions_have_accounts_of_their_own(driver):
    await driver.begin()
    await driver.feed(0)
    await driver.feed(0, 1, partition=Partition.VALIDATION)
    assert (await driver.ledger()).tasks.fed == 1
    assert (await driver.ledger(Partition.VALIDATION)).tasks.fed == 2
    assert await driver.store.accounts.dead_letters(driver.run_id, max_letters=9) == []


async def test_an_account_says_which_sequences_have_ended_whatever_the_way(driver):
    await driver.begin(max_member_issues=1, groups_per_version=8)
    await driver.feed(*range(6), group_size=1)
    members = await driver.lease(6)
    await driver.fail(members[1], members[4])
    await driver.put(members[3])
    await driver.commit(1, (await driver.batch(1)).groups)

    ledger = await driver.ledger()
    assert (ledger.first_open_sequence, ledger.ended_sequences) == (0, (1, 3, 4))
    await driver.fail(members[0])
    ledger = await driver.ledger()
    assert (ledger.first_open_sequence, ledger.ended_sequences) == (2, (3, 4))


async def test_the_rules_of_the_run_and_what_counts_against_its_bounds_can_be_asked(driver):
    await driver.begin(max_queue_size=7, max_queue_bytes=1000, lease_seconds=2.5)
    await driver.feed(0, 1, group_size=1)
    await driver.put(*await driver.lease(2))
    settings = (await driver.account()).stats.settings
    assert (settings.max_queue_size, settings.max_queue_bytes, settings.lease_seconds) == (7, 1000, 2.5)
    assert (await driver.stats()).queued_bytes == 2 * len(b"trajectory")
    await driver.batch(1)
    assert (await driver.stats()).queued_bytes == len(b"trajectory")


async def test_the_trainers_newest_steps_have_an_age_and_the_end_of_data_is_seen(driver):
    await driver.begin()
    stats = await driver.stats()
    assert (stats.ask_age_seconds, stats.commit_age_seconds, stats.data_ended) == (None, None, False)
    await driver.feed(0, group_size=1, end_of_data=True)
    await driver.put(*await driver.lease(1))
    groups = (await driver.batch(1)).groups
    await driver.commit(1, groups)
    stats = await driver.stats()
    assert 0 <= stats.commit_age_seconds <= stats.ask_age_seconds < 5
    assert stats.data_ended
