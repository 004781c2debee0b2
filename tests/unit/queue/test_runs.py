from __future__ import annotations

import time
from dataclasses import replace

import pytest

from services.common.errors import ConflictError, FencedError, InvalidInputError, NotFoundError
from services.common.types import GroupOutcome, OnStale, PutOutcome, ReplicaId, ReplicaStatus, RunId, WhenFull
from tests.unit.queue.driver import SETTINGS, Driver, sequences


def status(replica="replica-a", *, version=0, **changes):
    report = ReplicaStatus(
        replica_id=ReplicaId(replica),
        service="rollouter",
        policy_version=version,
        policy_digest="digest",
        busy_slots=1,
        max_slots=8,
        address="127.0.0.1:1",
        state="serving",
        metrics={"wait_share": 0.25},
    )
    return replace(report, **changes)


async def reconcile(driver, **changes):
    facts = {
        "epoch": driver.epoch,
        "commit_number": 0,
        "first_open_sequence": 0,
        "ended_sequences": [],
        "policy_version": driver.version,
        "num_consumed": 0,
        "num_filtered": 0,
        "num_dropped": 0,
        **changes,
    }
    return await driver.store.runs.reconcile(driver.run_id, **facts)


async def test_a_new_run_begins_at_the_time_so_that_epochs_grow_over_a_lost_run(driver):
    state = await driver.create()
    assert state.created
    assert not state.finished
    assert abs(state.epoch - time.time()) < 60
    assert (state.commit_number, state.policy_version, state.replica_version) == (0, -1, -1)


async def test_the_same_owner_keeps_its_epoch_and_another_takes_the_run_over(driver):
    first = await driver.create(owner="a")
    again = await driver.create(owner="a")
    other = await driver.create(owner="b")
    assert (again.epoch, again.created, other.epoch) == (first.epoch, False, first.epoch + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_staleness": 4}, r"max_staleness 0 != 4"),
        ({"on_stale": OnStale.DROP}, r"on_stale refill != drop"),
        ({"lease_seconds": 2.5}, r"lease_seconds 30 != 2.5"),
        ({"when_full": WhenFull.DROP_OLDEST, "min_group_members": 2}, r"when_full block != drop_oldest"),
    ],
)
async def test_other_settings_are_a_conflict_that_names_the_first_difference(driver, change, message):
    before = await driver.create()
    with pytest.raises(ConflictError, match=message):
        await driver.create(owner="b", **change)
    assert (await driver.account()).stats.epoch == before.epoch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups_per_version": 0}, "groups_per_version is 0; use at least 1"),
        ({"max_staleness": -1}, "max_staleness is -1; use at least 0"),
        ({"lease_seconds": 0.0}, "lease_seconds is 0.0"),
    ],
)
async def test_settings_out_of_bounds_are_refused(driver, change, message):
    with pytest.raises(InvalidInputError, match=message):
        await driver.create(**change)


async def test_names_that_cannot_be_keys_are_refused(store):
    for name in ("", "a b", "{x}", "x" * 129):
        with pytest.raises(InvalidInputError, match="run_id"):
            await store.runs.create(RunId(name), SETTINGS, owner_id="a")
    with pytest.raises(InvalidInputError, match="owner_id"):
        await store.runs.create(RunId("fine"), SETTINGS, owner_id="")


async def test_versions_only_grow_and_a_retry_needs_the_same_digest(driver):
    await driver.create()
    await driver.register(3)
    await driver.register(3)
    with pytest.raises(ConflictError, match="version 3 was registered with digest digest-3"):
        await driver.store.runs.register_version(driver.run_id, epoch=driver.epoch, version=3, digest="other")
    with pytest.raises(InvalidInputError, match="version is 2, the newest registered is 3"):
        await driver.register(2)
    with pytest.raises(InvalidInputError, match="versions begin at 0"):
        await driver.register(-1)
    driver.epoch -= 1
    with pytest.raises(FencedError):
        await driver.register(4)


async def test_capacity_counts_from_the_first_version_of_a_branch(driver):
    await driver.begin(groups_per_version=2)
    await driver.register(5)
    await driver.create(owner="b")
    await driver.register(6, branch=True)
    assert (await driver.feed(*range(9))).num_accepted == 2


async def test_heartbeats_are_kept_and_the_largest_version_is_remembered(driver):
    await driver.create()
    assert await driver.store.runs.heartbeat(driver.run_id, status("a", version=3)) is False
    await driver.store.runs.heartbeat(driver.run_id, status("b", version=2))
    await driver.store.runs.heartbeat(driver.run_id, status("b", version=1, state="draining"))
    replicas = (await driver.account()).stats.replicas
    assert {report.status.replica_id: report.status.state for report in replicas} == {"a": "serving", "b": "draining"}
    assert replicas[0].status == status("a", version=3)
    assert (await driver.create(owner="b")).replica_version == 3


async def test_a_heartbeat_tells_that_the_run_has_finished(driver):
    await driver.begin()
    await driver.commit(1, [], final=True)
    assert await driver.store.runs.heartbeat(driver.run_id, status())
    assert (await driver.create(owner="b")).finished


async def test_runs_on_one_server_do_not_see_each_other(driver, store):
    other = Driver(store, RunId(f"{driver.run_id}-other"))
    await driver.begin()
    await other.begin()
    await driver.feed(0)
    assert await other.lease() == []
    assert (await other.ledger()).tasks.fed == 0


async def test_an_unknown_run_is_named(driver):
    with pytest.raises(NotFoundError, match=driver.run_id):
        await driver.account()
    with pytest.raises(NotFoundError):
        await driver.store.runs.heartbeat(driver.run_id, status())
    with pytest.raises(NotFoundError):
        await driver.store.runs.sweep(driver.run_id)


async def test_a_lost_run_is_rebuilt_from_the_checkpoint(driver):
    await driver.begin(version=7)
    facts = {
        "commit_number": 3,
        "first_open_sequence": 5,
        "ended_sequences": [6, 8],
        "policy_version": 9,
        "num_consumed": 5,
        "num_filtered": 1,
        "num_dropped": 1,
    }
    assert await reconcile(driver, **facts) == 0
    assert await reconcile(driver, **facts) == 0
    account = await driver.account()
    ledger = account.ledgers[0]
    assert (account.stats.commit_number, account.stats.policy_version, ledger.commits) == (3, 9, 3)
    assert (ledger.tasks.fed, ledger.tasks.consumed, ledger.tasks.filtered) == (7, 5, 1)
    assert ledger.tasks.dropped == {"reconciled": 1}
    answer = await driver.feed(4, 5, 6, 7, 8, 9)
    assert answer.num_accepted == 6
    assert [item.key.task_id for item in await driver.lease(9, version=9)] == [
        "00000005",
        "00000005",
        "00000007",
        "00000007",
        "00000009",
        "00000009",
    ]
    await driver.register(10, branch=True)
    with pytest.raises(InvalidInputError, match="ended_sequences has 2"):
        await reconcile(driver, first_open_sequence=5, ended_sequences=[2])


async def test_what_the_checkpoint_has_ended_is_removed_from_a_restored_queue(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(0, 1, 2, 3, group_size=1)
    members = await driver.lease(3)
    await driver.put(members[0])
    removed = await reconcile(
        driver, commit_number=2, first_open_sequence=1, ended_sequences=[2], num_consumed=2, policy_version=0
    )
    assert removed == 2
    ledger = await driver.ledger()
    assert (ledger.tasks.fed, ledger.tasks.open, ledger.tasks.consumed) == (4, 2, 2)
    assert (await driver.stats()).payload_bytes == 0
    assert await driver.put(members[2]) == [PutOutcome.DUPLICATE]
    assert (await driver.feed(0, 1, 2, 3, group_size=1)).num_accepted == 4
    await driver.put(members[1], *await driver.lease(5))
    assert sequences((await driver.batch(2)).groups) == [1, 3]


async def test_going_back_to_an_older_checkpoint_is_not_training_twice(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(0, 1, group_size=1)
    await driver.produce()
    await driver.commit(1, (await driver.batch(1)).groups)
    await driver.commit(2, (await driver.batch(1)).groups)
    await reconcile(driver, commit_number=1, first_open_sequence=1, num_consumed=1)
    assert (await driver.feed(1, group_size=1)).num_accepted == 1
    await driver.produce()
    await driver.commit(2, (await driver.batch(1)).groups, outcome=GroupOutcome.CONSUMED)
    ledger = await driver.ledger()
    assert (ledger.tasks.consumed, ledger.tasks.fed, ledger.trained_twice) == (2, 2, 0)


async def test_a_trainer_whose_takeover_the_server_lost_keeps_its_run(driver):
    await driver.begin(owner="a")
    old = driver.epoch
    driver.epoch = old + 1
    await driver.register(1)
    assert (await driver.create(owner="a")).epoch == old + 2
    driver.epoch = old + 1
    with pytest.raises(FencedError):
        await driver.register(2)


async def test_a_version_that_a_reconciliation_told_of_is_registered_with_its_own_digest(driver):
    await driver.begin(version=7)
    await reconcile(driver, commit_number=6, policy_version=13)
    await driver.register(13)
    with pytest.raises(ConflictError):
        await driver.store.runs.register_version(driver.run_id, epoch=driver.epoch, version=13, digest="other")
    await reconcile(driver, commit_number=6, policy_version=13)
    with pytest.raises(ConflictError, match="digest-13"):
        await driver.store.runs.register_version(driver.run_id, epoch=driver.epoch, version=13, digest="other")


async def test_after_a_reconciliation_the_data_has_not_ended_until_the_trainer_says_so_again(driver):
    await driver.begin(groups_per_version=8)
    await driver.feed(*range(4), group_size=1, end_of_data=True)
    await driver.produce()
    await driver.commit(1, (await driver.batch(2)).groups)
    await driver.commit(2, (await driver.batch(2)).groups)
    await reconcile(driver, commit_number=1, first_open_sequence=2, num_consumed=2)

    assert not (await driver.batch(2)).end_of_data
    await driver.feed(2, group_size=1)
    await driver.produce()
    assert (await driver.batch(2)).groups == ()
    await driver.feed(3, group_size=1, end_of_data=True)
    await driver.produce()
    assert sequences((await driver.batch(3)).groups) == [2, 3]


async def test_dead_letters_are_counted_once_over_reconciliations(driver):
    await driver.begin(max_member_issues=1)
    await driver.feed(0, 1, group_size=1)
    await driver.fail(*await driver.lease())
    for _ in range(2):
        await reconcile(driver, commit_number=1, first_open_sequence=1, num_dropped=1)
    tasks = (await driver.ledger()).tasks
    assert (tasks.fed, tasks.dead_lettered, tasks.dropped, tasks.open) == (2, 1, {}, 1)
    assert (await driver.feed(0, 1, 2, group_size=1)).num_accepted == 3
    assert (await driver.ledger()).tasks.fed == 3


async def test_dead_letters_that_the_server_forgot_are_made_up_for(driver):
    await driver.begin(max_member_issues=1)
    await driver.feed(0, group_size=1)
    await driver.fail(*await driver.lease())
    await reconcile(driver, commit_number=1, first_open_sequence=4, num_dropped=3, num_consumed=1)
    tasks = (await driver.ledger()).tasks
    assert (tasks.fed, tasks.dead_lettered, tasks.dropped) == (4, 1, {"reconciled": 2})
