import asyncio

import pytest

from services.common.errors import InternalError, StalledError
from services.common.types import Partition, TaskId
from services.trainer.dataset import RunData
from services.trainer.tasks import validation_tasks
from services.trainer.validation import Validator
from tests.unit.trainer.fakes import FakeQueue, make_config, make_rows
from tests.unit.trainer.test_feeding import make_feeder


async def make_validator(tmp_path, queue=None, *, size=3, stall_seconds=5.0, stop=None):
    _, queue, link = await make_feeder(tmp_path, queue)
    config = make_config(tmp_path, validation={"size": size, "group_size": 2})
    source = validation_tasks(config, RunData(train=make_rows(1), validation=make_rows(size), num_excluded=0))
    validator = Validator(
        link,
        source,
        group_size=2,
        pass_threshold=1.0,
        stall_seconds=stall_seconds,
        stop=stop or asyncio.Event(),
    )
    return validator, queue, link


async def test_every_held_out_row_is_tried_by_the_version_that_is_measured(tmp_path):
    queue = FakeQueue(reward=lambda sequence, member: float(sequence == 0))
    validator, _, _ = await make_validator(tmp_path, queue)

    measurement = await validator.measure(version=0, step=4)

    assert (measurement.step, measurement.version, measurement.num_tasks, measurement.num_attempts) == (4, 0, 3, 6)
    assert measurement.pass_rate == measurement.reward_mean == pytest.approx(1 / 3)
    assert measurement.num_missing == 0
    assert queue.streams[Partition.VALIDATION].consumed == 3
    assert not queue.streams[Partition.VALIDATION].entries
    assert not queue.streams[Partition.TRAIN].entries


async def test_a_second_measurement_has_tasks_of_its_own(tmp_path):
    validator, queue, _ = await make_validator(tmp_path)
    await validator.measure(version=0, step=0)

    measurement = await validator.measure(version=0, step=8)

    assert measurement.num_attempts == 6
    assert sorted(queue.streams[Partition.VALIDATION].ended) == [TaskId(f"{index:08d}") for index in range(6)]


async def test_what_an_interrupted_measurement_left_is_left_out_of_the_next(tmp_path):
    validator, queue, _ = await make_validator(tmp_path)
    await validator._feed(await validator._tasks(), 0)

    measurement = await validator.measure(version=0, step=0)

    assert (measurement.num_tasks, measurement.num_attempts) == (3, 6)
    assert (queue.streams[Partition.VALIDATION].consumed, queue.streams[Partition.VALIDATION].filtered) == (3, 3)


async def test_failed_attempts_are_missing_and_not_zero(tmp_path):
    queue = FakeQueue(reward=lambda sequence, member: 1.0)
    queue.unscorable = {TaskId("00000001")}
    validator, _, _ = await make_validator(tmp_path, queue)

    measurement = await validator.measure(version=0, step=0)

    assert (measurement.pass_rate, measurement.num_tasks, measurement.num_missing) == (1.0, 2, 2)
    assert measurement.as_dict()["num_missing"] == 2


async def test_a_measurement_without_a_single_score_is_an_error(tmp_path):
    queue = FakeQueue()
    queue.unscorable = {TaskId(f"{index:08d}") for index in range(3)}
    validator, _, _ = await make_validator(tmp_path, queue)

    with pytest.raises(
        InternalError,
        match=r"none of 3 held-out.*: 6 attempts failed with reward_error, 3 tasks were.*logs/reward\.log",
    ):
        await validator.measure(version=0, step=0)


async def test_a_measurement_that_nobody_works_on_ends_with_a_sentence(tmp_path):
    validator, _, _ = await make_validator(tmp_path, FakeQueue(rollouters=False), stall_seconds=0.1)

    with pytest.raises(StalledError, match=r"validation: no group became ready for 0\.1 s"):
        await validator.measure(version=0, step=0)


async def test_a_wish_to_stop_ends_it_without_a_result(tmp_path):
    stop = asyncio.Event()
    stop.set()
    validator, _, _ = await make_validator(tmp_path, FakeQueue(rollouters=False), stop=stop)

    assert await validator.measure(version=0, step=0) is None
