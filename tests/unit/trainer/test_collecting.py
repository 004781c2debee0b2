import asyncio
from dataclasses import replace

import pytest

from services.common.errors import ReconcileRequiredError, StalledError
from services.common.types import Partition, TaskId
from services.trainer.account import Account
from services.trainer.collecting import NUDGE_SECONDS, BatchCollector, Patience, check_hope, describe_stall
from tests.unit.trainer.fakes import FakeQueue
from tests.unit.trainer.test_account import make_group
from tests.unit.trainer.test_feeding import make_feeder


async def nothing():
    return


def make_collector(link, *, account=None, stop=None, stall_seconds=5.0, clock=lambda: 0.0):
    return BatchCollector(
        link,
        account or Account(),
        stall_seconds=stall_seconds,
        stop=stop or asyncio.Event(),
        clock=clock,
        wall_clock=lambda: 12.5,
    )


async def test_a_batch_comes_page_by_page_and_in_order_of_sequence(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    await feeder.feed()
    queue.page_size = 1

    batch = await make_collector(link).collect(3, use_version=0, nudge=nothing)

    assert [group.sequence for group in batch.groups] == [0, 1, 2]
    assert (batch.lease_time, batch.end_of_data) == (12.5, False)


async def test_a_lost_answer_is_asked_for_again_and_strands_no_group(tmp_path):
    from services.common.errors import UnavailableError

    feeder, queue, link = await make_feeder(tmp_path)
    await feeder.feed()
    answers = []

    def lose_the_first():
        answers.append(1)
        if len(answers) == 1:
            raise UnavailableError("connection reset")

    queue.after["lease_batch"] = lose_the_first

    batch = await make_collector(link).collect(2, use_version=0, nudge=nothing)

    assert [group.sequence for group in batch.groups] == [0, 1]


async def test_a_wish_to_stop_ends_the_wait(tmp_path):
    _, _, link = await make_feeder(tmp_path)
    stop = asyncio.Event()
    stop.set()

    batch = await make_collector(link, stop=stop).collect(2, use_version=0, nudge=nothing)

    assert (batch.groups, batch.num_ready) == ([], 0)


async def test_a_queue_with_another_commit_number_is_refused(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    await feeder.feed()
    queue.commit_number = 3

    with pytest.raises(ReconcileRequiredError, match="newest commit is 3 and the trainer's is 0"):
        await make_collector(link).collect(2, use_version=0, nudge=nothing)


async def test_a_group_that_was_used_before_is_refused(tmp_path):
    feeder, _, link = await make_feeder(tmp_path)
    await feeder.feed()
    account = Account()
    account.note_step([make_group(1)], num_tokens=1)

    with pytest.raises(ReconcileRequiredError, match=r"task 00000001 .*trained on before"):
        await make_collector(link, account=account).collect(2, use_version=0, nudge=nothing)


async def test_nothing_for_too_long_ends_with_depths_and_replicas(tmp_path):
    feeder, _, link = await make_feeder(tmp_path, FakeQueue(rollouters=False))
    await feeder.feed()

    with pytest.raises(StalledError, match=r"0 of 2 groups ready, 8 members wait.*replica-a serving at version 0, 1/4"):
        await make_collector(link, stall_seconds=0.05, clock=asyncio.get_running_loop().time).collect(
            2, use_version=0, nudge=nothing
        )


async def test_the_others_are_reminded_while_nothing_comes(tmp_path):
    _, _, link = await make_feeder(tmp_path, FakeQueue(rollouters=False))
    times = iter(range(0, 1000, 6))
    nudges = []

    async def nudge():
        nudges.append(1)

    with pytest.raises(StalledError):
        await make_collector(link, stall_seconds=0.02 + 30, clock=lambda: float(next(times))).collect(
            2, use_version=0, nudge=nudge
        )
    assert 0 < len(nudges) < 4


def test_patience_begins_anew_with_every_group_and_with_every_record_of_ready_ones():
    now = [0.0]
    patience = Patience(stall_seconds=10.0, clock=lambda: now[0])
    now[0] = 9.0
    patience.news(got=False, num_ready=1)
    now[0] = 18.0
    patience.news(got=False, num_ready=1)
    assert not patience.exhausted
    now[0] = 19.0
    assert patience.exhausted

    patience.news(got=True, num_ready=0)
    assert not patience.exhausted
    assert not patience.nudge_due()
    now[0] += NUDGE_SECONDS
    assert patience.nudge_due()
    assert not patience.nudge_due()


async def test_a_stall_without_replicas_or_depths_is_said_as_such():
    stats = replace(await FakeQueue().get_stats(), partitions=(), replicas=())

    assert "nothing is queued" in describe_stall(stats, 3.0, wanted=2)
    assert "none is heard of, start one" in describe_stall(stats, 3.0, wanted=2)


async def test_a_stall_of_a_held_batch_says_for_how_many_groups_it_is_held():
    stats = await FakeQueue().get_stats()
    assert "held" not in describe_stall(stats, 3.0, wanted=2)

    train, *others = stats.partitions
    held = replace(stats, partitions=(replace(train, held_for_groups=3), *others))

    sentence = describe_stall(held, 3.0, wanted=2)
    assert "the batch is held for 3 unfinished groups that the next versions would make too old" in sentence


async def test_a_run_in_which_every_attempt_fails_ends_at_once_and_names_the_failures(tmp_path):
    queue = FakeQueue()
    queue.unscorable = {TaskId(f"{index:08d}") for index in range(20)}
    feeder, _, link = await make_feeder(tmp_path, queue)

    await feeder.feed()
    assert queue.streams[Partition.TRAIN].dead_lettered >= 3

    with pytest.raises(
        StalledError, match=r"no attempt was ever scored: \d+ attempts failed with reward_error, \d+ tasks"
    ):
        await make_collector(link, stall_seconds=0.05).collect(1, use_version=0, nudge=nothing)


async def test_a_reward_service_that_cannot_be_reached_gets_all_the_time(tmp_path):
    ledger, _ = await FakeQueue().get_ledger()
    hopeless = replace(ledger, tasks=replace(ledger.tasks, dead_lettered=6))

    check_hope(replace(hopeless, trajectories=replace(ledger.trajectories, failed={"reward_unavailable": 1})), wanted=2)
    check_hope(replace(hopeless, trajectories=replace(ledger.trajectories, put=1)), wanted=2)
    with pytest.raises(StalledError, match="given up at 6 dead-lettered tasks"):
        check_hope(hopeless, wanted=2)
