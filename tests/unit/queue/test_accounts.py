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
