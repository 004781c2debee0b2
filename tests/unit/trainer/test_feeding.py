import asyncio

import pytest

from services.common.errors import RunFinishedError
from services.common.types import Partition, TaskId
from services.trainer.account import Account
from services.trainer.config import run_settings
from services.trainer.dataset import RunData
from services.trainer.feeding import Feeder
from services.trainer.queue_link import QueueLink
from services.trainer.tasks import training_tasks
from services.trainer.versions import VersionFile
from tests.unit.trainer.fakes import FakeQueue, make_config, make_rows
from tests.unit.trainer.test_account import make_group, state_of


async def make_feeder(tmp_path, queue=None, *, account=None, total_groups=100, next_sequence=0, version=0, **sections):
    config = make_config(tmp_path, **sections)
    queue = queue or FakeQueue()
    link = QueueLink(queue, patience_seconds=1.0)
    await link.take_over(run_settings(config), epochs=VersionFile(tmp_path / "version.json"))
    await link.register_version(version, digest="", branch=True)
    source = training_tasks(config, RunData(train=make_rows(6), validation=(), num_excluded=0))
    account = account or Account()
    feeder = Feeder(link, source, account=account, total_groups=total_groups, next_sequence=next_sequence)
    return feeder, queue, link


def fed(queue):
    return sorted(entry.task.sequence for entry in queue.streams[Partition.TRAIN].entries.values())


async def test_it_feeds_as_far_as_the_capacity_rule_admits_and_goes_on_with_the_next_version(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)

    await feeder.feed()
    assert fed(queue) == [0, 1, 2, 3]
    await link.register_version(1, digest="", branch=False)
    await feeder.feed()

    assert fed(queue) == [0, 1, 2, 3, 4, 5]
    assert feeder.next_sequence == 6


async def test_it_never_feeds_more_than_the_run_still_needs(tmp_path):
    feeder, queue, _ = await make_feeder(tmp_path, total_groups=3)

    await feeder.feed()
    await feeder.feed()

    assert fed(queue) == [0, 1, 2]


async def test_a_task_that_ended_without_being_consumed_is_replaced(tmp_path):
    queue = FakeQueue()
    queue.unscorable = {TaskId("00000001")}
    feeder, _, _ = await make_feeder(tmp_path, queue, total_groups=3)

    await feeder.feed()

    assert fed(queue) == [0, 2, 3]


async def test_after_a_resume_everything_that_had_not_ended_is_offered_again(tmp_path):
    account = Account()
    account.note_step([make_group(0), make_group(2)], num_tokens=1)
    resumed = Account(state_of(account))
    feeder, queue, _ = await make_feeder(tmp_path, account=resumed, total_groups=4, next_sequence=5)
    queue.streams[Partition.TRAIN].consumed = 2

    await feeder.feed()

    assert fed(queue) == [1, 3, 4]
    assert feeder.next_sequence == 5


async def test_offering_again_changes_nothing_for_a_queue_that_kept_everything(tmp_path):
    feeder, queue, _ = await make_feeder(tmp_path)
    await feeder.feed()

    feeder.rewind()
    await feeder.feed()

    assert fed(queue) == [0, 1, 2, 3]
    assert queue.streams[Partition.TRAIN].fed == 4


async def test_the_end_of_the_data_is_said_once(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path, data={"max_epochs": 1}, async_={"max_staleness": 9})

    await feeder.feed()

    assert fed(queue) == [0, 1, 2, 3, 4, 5]
    assert queue.streams[Partition.TRAIN].data_ended
    before = queue.streams[Partition.TRAIN].fed
    await feeder.feed()
    assert queue.streams[Partition.TRAIN].fed == before
    assert link.epoch == 1


async def test_it_runs_until_stopped_and_wakes_at_once(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    async with asyncio.timeout(3), asyncio.TaskGroup() as tasks:
        tasks.create_task(feeder.run())
        while len(fed(queue)) < 4:
            await asyncio.sleep(0.01)
        await link.register_version(1, digest="", branch=False)
        feeder.wake()
        while len(fed(queue)) < 6:
            await asyncio.sleep(0.01)
        feeder.stop()

    await feeder.feed()
    assert len(fed(queue)) == 6


class ClosedWhileAsked(FakeQueue):
    """A queue whose run is closed while tasks are on their way to it."""

    def __init__(self):
        super().__init__()
        self.on_the_way = asyncio.Event()
        self.closed = asyncio.Event()

    async def enqueue_tasks(self, tasks, **options):
        self.on_the_way.set()
        await self.closed.wait()
        raise RunFinishedError("the run has ended")


async def test_a_feeder_that_was_stopped_ends_quietly_when_the_run_was_closed_meanwhile(tmp_path):
    feeder, queue, _ = await make_feeder(tmp_path, ClosedWhileAsked())
    async with asyncio.timeout(3), asyncio.TaskGroup() as tasks:
        tasks.create_task(feeder.run())
        await queue.on_the_way.wait()
        feeder.stop()
        queue.closed.set()


async def test_a_run_that_somebody_else_closed_is_an_error_to_a_feeder_at_work(tmp_path):
    feeder, queue, _ = await make_feeder(tmp_path, ClosedWhileAsked())
    queue.closed.set()
    async with asyncio.timeout(3):
        with pytest.raises(RunFinishedError):
            await feeder.run()


async def test_tasks_that_the_store_forgot_are_fed_again_before_any_later_one(tmp_path):
    feeder, queue, _ = await make_feeder(tmp_path)
    await feeder.feed()
    stream = queue.streams[Partition.TRAIN]
    forgotten = {stream.entries.pop(f"{at:08d}").task.sequence for at in (1, 3)}

    await feeder.feed()

    assert forgotten == {1, 3}
    assert fed(queue) == [0, 1, 2, 3]


async def test_what_was_trained_on_and_forgotten_is_not_fed_again(tmp_path):
    account = Account()
    feeder, queue, _ = await make_feeder(tmp_path, account=account)
    await feeder.feed()
    queue.streams[Partition.TRAIN].entries.clear()
    account.note_step([make_group(0), make_group(1)], num_tokens=4)

    await feeder.feed()

    assert fed(queue)[:2] == [2, 3]


async def test_nothing_is_fed_while_the_store_is_out_of_step(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    link.is_out_of_step = True
    running = asyncio.ensure_future(feeder.run())
    await asyncio.sleep(0.05)
    assert fed(queue) == []

    link.is_out_of_step = False
    feeder.rewind()
    await asyncio.sleep(0.05)

    assert fed(queue) == [0, 1, 2, 3]
    feeder.stop()
    await running
