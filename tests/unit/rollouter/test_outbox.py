import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.common.errors import InvalidInputError, OverloadedError, UnavailableError
from services.common.types import FailedMember, FailureReason
from services.rollouter.outbox import Finished, Outbox
from tests.factories import make_trajectory
from tests.integration.serving import eventually
from tests.unit.rollouter.fakes import REPLICA, FakeQueue, make_assignment


def make_finished(member=0):
    assignment = make_assignment(0, member)
    return Finished(assignment=assignment, result=make_trajectory(0, member), ready_time=time.time())


@asynccontextmanager
async def running(queue, settled, *, max_records=8):
    outbox = Outbox(
        queue, replica_id=REPLICA, max_records=max_records, pause=lambda _tries: 0.01, on_settled=settled.append
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(outbox.run())
        yield outbox
        task.cancel()


async def test_what_is_ready_goes_in_one_call():
    queue, settled = FakeQueue(), []
    async with running(queue, settled) as outbox:
        for member in range(5):
            await outbox.add(make_finished(member))
        await eventually(lambda: len(settled) == 5)
    assert queue.put_calls == [5]


@pytest.mark.parametrize("error", [UnavailableError("away"), OverloadedError("Redis is out of memory")])
async def test_a_put_is_repeated_until_the_queue_is_back_or_has_room(error):
    queue, settled = FakeQueue(), []
    queue.errors = [error]
    async with running(queue, settled, max_records=2) as outbox:
        for member in range(3):
            await outbox.add(make_finished(member))
        await asyncio.sleep(0.05)
        assert settled == []
        queue.errors = []
        await eventually(lambda: len(settled) == 3)
    assert len(queue.put) == 3


class PickyQueue(FakeQueue):
    """Refuses a trajectory of member 1, alone or in company."""

    async def put_trajectories(self, results):
        if any(result.key.member == 1 and not isinstance(result, FailedMember) for result in results):
            raise InvalidInputError("too large")
        return await super().put_trajectories(results)


async def test_a_refused_record_does_not_hold_up_its_neighbours_and_becomes_a_failure():
    queue, settled = PickyQueue(), []
    async with running(queue, settled) as outbox:
        for member in range(3):
            await outbox.add(make_finished(member))
        await eventually(lambda: len(settled) == 3)
    refused = queue.put[make_assignment(0, 1).lease_id]
    assert refused.failure.reason is FailureReason.AGENT_ERROR
    assert not isinstance(queue.put[make_assignment(0, 2).lease_id], FailedMember)


async def test_a_record_without_a_wire_form_is_refused_alone():
    class Strict(FakeQueue):
        async def put_trajectories(self, results):
            if not all(isinstance(result, FailedMember) for result in results):
                raise ValueError("surrogates not allowed")
            return await super().put_trajectories(results)

    queue, settled = Strict(), []
    async with running(queue, settled) as outbox:
        await outbox.add(make_finished())
        await eventually(lambda: settled)
    assert isinstance(queue.put[settled[0]], FailedMember)


async def test_calls_are_bounded_by_bytes_and_what_waits_is_known():
    queue, settled = FakeQueue(), []
    queue.errors = [UnavailableError("away")]
    large = "x" * (9 * 1024 * 1024)
    async with running(queue, settled, max_records=64) as outbox:
        for member in range(32):
            record = make_finished(member)
            await outbox.add(replace(record, result=replace(record.result, completion=large)))
        assert outbox.num_bytes >= 32 * len(large)
        assert outbox.is_full
        queue.errors = []
        await eventually(lambda: len(settled) == 32)
        await eventually(lambda: outbox.num_bytes == 0)
        assert not outbox.is_full
    assert max(queue.put_calls) == 2
