import asyncio
from contextlib import asynccontextmanager

import pytest

from services.common.errors import InternalError, NotFoundError, RunFinishedError, UnavailableError
from services.common.types import FailedMember, FailureReason, Partition, PutOutcome, ReleaseReason, Trajectory
from tests.integration.serving import eventually
from tests.unit.rollouter.fakes import (
    FakeEngine,
    FakeQueue,
    FakeScorer,
    FakeSync,
    make_assignment,
    make_generation,
    make_worker,
)


@asynccontextmanager
async def working(worker):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(worker.run())
        try:
            yield task
        finally:
            task.cancel()


async def test_leased_members_come_back_as_trajectories():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(6)]), FakeEngine(max_slots=4)
    async with working(make_worker(queue, engine)):
        await eventually(lambda: len(queue.put) == 6)
    assert all(isinstance(result, Trajectory) for result in queue.put.values())
    assert queue.polls[0] == (4, 3)
    assert {request.request_id for request in engine.requests} == {f"{lease_id}#0" for lease_id in queue.put}


async def test_no_more_members_are_leased_than_slots_are_free():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(6)]), FakeEngine(max_slots=4)
    engine.gate.clear()
    async with working(worker := make_worker(queue, engine)):
        await eventually(lambda: len(engine.running) == 4)
        await asyncio.sleep(0.05)
        assert worker.num_generating == 4
        assert len(queue.waiting) == 2
        engine.gate.set()
        await eventually(lambda: len(queue.put) == 6)


async def test_a_failed_attempt_leaves_its_neighbours_alone():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(3)]), FakeEngine()
    engine.answers = [InternalError("not finite"), make_generation(), make_generation()]
    async with working(make_worker(queue, engine)):
        await eventually(lambda: len(queue.put) == 3)
    failed = [result for result in queue.put.values() if isinstance(result, FailedMember)]
    assert [result.failure.reason for result in failed] == [FailureReason.ENGINE_ERROR]


async def test_leases_are_renewed_while_a_member_is_held():
    queue, engine = FakeQueue([make_assignment()]), FakeEngine()
    engine.gate.clear()
    async with working(make_worker(queue, engine)):
        await eventually(lambda: len(queue.extended) >= 3)
        engine.gate.set()
        await eventually(lambda: queue.put)
        count = len(queue.extended)
        await asyncio.sleep(0.12)
        assert len(queue.extended) == count


async def test_work_on_a_lost_lease_ends_and_is_neither_put_nor_returned():
    queue, engine = FakeQueue([make_assignment(0, 0), make_assignment(0, 1)]), FakeEngine()
    engine.gate.clear()
    queue.lost = {make_assignment(0, 0).lease_id}
    async with working(worker := make_worker(queue, engine)):
        await eventually(lambda: engine.cancelled)
        await eventually(lambda: worker.num_held == 1)
        engine.gate.set()
        await eventually(lambda: queue.put)
    assert list(queue.put) == [make_assignment(0, 1).lease_id]
    assert queue.released == []


async def test_a_member_that_cannot_be_in_time_is_ended_and_returned():
    queue = FakeQueue([make_assignment(0, 0), make_assignment(0, 1, partition=Partition.VALIDATION)])
    engine = FakeEngine(version=3)
    engine.gate.clear()
    sync = FakeSync(engine, newest=4)
    async with working(worker := make_worker(queue, engine, sync=sync)):
        await eventually(lambda: len(engine.running) == 2)
        await asyncio.sleep(0.05)
        assert engine.cancelled == []
        sync.newest_version = 5
        await eventually(lambda: queue.released)
        assert worker.num_held == 1
    assert queue.released == [(make_assignment(0, 0).lease_id, ReleaseReason.STALE)]


async def test_a_drain_lets_members_end():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(2)]), FakeEngine()
    engine.gate.clear()
    async with working(worker := make_worker(queue, engine)) as running:
        await eventually(lambda: len(engine.running) == 2)
        queue.waiting = [make_assignment(9)]
        async with asyncio.TaskGroup() as group:
            drain = group.create_task(worker.drain())
            await asyncio.sleep(0.05)
            assert not drain.done()
            engine.gate.set()
        await asyncio.wait_for(running, 1)
    assert len(queue.put) == 2
    assert queue.released in ([], [(make_assignment(9).lease_id, ReleaseReason.DRAIN)])


async def test_a_drain_returns_what_does_not_end_in_time():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(2)]), FakeEngine()
    engine.gate.clear()
    async with working(worker := make_worker(queue, engine)) as running:
        await eventually(lambda: len(engine.running) == 2)
        await asyncio.wait_for(worker.drain(), 2)
        await asyncio.wait_for(running, 1)
    assert {reason for _, reason in queue.released} == {ReleaseReason.DRAIN}
    assert len(queue.released) == len(engine.cancelled) == 2


async def test_a_drain_before_the_first_version_ends_at_once():
    queue, engine = FakeQueue(), FakeEngine(version=-1)
    async with working(worker := make_worker(queue, engine)):
        await asyncio.wait_for(worker.drain(), 1)
    assert queue.polls == []


async def test_work_goes_on_while_the_queue_is_away_and_is_put_when_it_is_back():
    queue, engine = FakeQueue([make_assignment(0, member) for member in range(2)]), FakeEngine()
    engine.gate.clear()
    async with working(worker := make_worker(queue, engine)):
        await eventually(lambda: len(engine.running) == 2)
        queue.errors = [UnavailableError("the queue is away")]
        engine.gate.set()
        await eventually(lambda: worker.num_generating == 0)
        await asyncio.sleep(0.2)
        assert worker.num_held == 2
        queue.errors = []
        await eventually(lambda: len(queue.put) == 2)
        await eventually(lambda: worker.num_held == 0)


async def test_a_run_that_does_not_exist_yet_is_waited_for():
    queue, engine = FakeQueue([make_assignment()]), FakeEngine()
    queue.errors = [NotFoundError("there is no run")]
    async with working(make_worker(queue, engine)):
        await asyncio.sleep(0.05)
        queue.errors = []
        await eventually(lambda: queue.put)


async def test_nothing_is_leased_while_too_many_results_wait():
    queue, engine = FakeQueue([make_assignment(index) for index in range(12)]), FakeEngine(max_slots=4)
    away = asyncio.Event()

    class Slow(FakeScorer):
        async def score(self, request, *, timeout_seconds, traceparent=""):
            await away.wait()
            return await super().score(request, timeout_seconds=timeout_seconds, traceparent=traceparent)

    async with working(worker := make_worker(queue, engine, scorer=Slow(), max_finishing=4)):
        await eventually(lambda: worker.num_held - worker.num_generating >= 4)
        await asyncio.sleep(0.05)
        assert worker.num_held <= 8
        away.set()
        await eventually(lambda: len(queue.put) == 12)


async def test_a_replica_that_is_too_old_asks_again_once_it_has_caught_up():
    queue, engine = FakeQueue(), FakeEngine(version=3)
    queue.wanted_version = 5
    sync = FakeSync(engine)
    async with working(make_worker(queue, engine, sync=sync)):
        await eventually(lambda: 5 in sync.waits)
        assert len(queue.polls) == 1
        queue.wanted_version = None
        queue.waiting = [make_assignment()]
        engine.policy_version = 5
        await eventually(lambda: queue.put)
    assert queue.polls[1] == (4, 5)


@pytest.mark.parametrize("error", [None, RunFinishedError("over")])
async def test_a_finished_run_ends_the_work(error):
    queue, engine = FakeQueue(), FakeEngine()
    queue.finished = error is None
    queue.errors = [error]
    worker = make_worker(queue, engine)
    await asyncio.wait_for(worker.run(), 2)
    assert worker.finished.is_set()


async def test_the_same_lease_is_not_worked_on_twice():
    queue, engine = FakeQueue([make_assignment(), make_assignment()]), FakeEngine()
    engine.gate.clear()
    async with working(worker := make_worker(queue, engine)):
        await eventually(lambda: engine.running)
        await asyncio.sleep(0.03)
        assert worker.num_held == 1
        assert len(engine.requests) == 1


async def test_a_result_that_came_too_late_is_forgotten():
    queue, engine = FakeQueue([make_assignment()]), FakeEngine()
    queue.outcome = PutOutcome.DUPLICATE
    async with working(worker := make_worker(queue, engine)):
        await eventually(lambda: queue.put and worker.num_held == 0)
