import asyncio

from services.common.errors import UnavailableError
from services.common.types import Adoption
from services.rollouter.replica import Replica
from tests.integration.serving import eventually
from tests.unit.rollouter.fakes import REPLICA, FakeEngine, FakeQueue, FakeSync, make_worker


def make_replica(queue, engine, **changes):
    sync = FakeSync(engine)
    worker = make_worker(queue, engine, sync=sync)
    options = {"heartbeat_seconds": 0.02, "patience_seconds": 60.0} | changes
    return Replica(queue, engine, worker=worker, sync=sync, **options), worker, sync


async def test_a_heartbeat_says_what_the_replica_serves():
    queue, engine = FakeQueue(), FakeEngine(max_slots=4, version=3)
    replica, worker, sync = make_replica(queue, engine)
    replica.address = "127.0.0.1:5"
    assert replica.status().state == "starting"
    sync.last_adoption = Adoption(
        replica_id=REPLICA, version=3, digest="digest", pause_seconds=0.25, total_seconds=2.0, received_bytes=10
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(replica.run())
        await eventually(lambda: len(queue.statuses) >= 3)
        await worker.drain()
        await eventually(lambda: queue.statuses[-1].state == "draining")
        task.cancel()
    status = queue.statuses[0]
    assert (status.replica_id, status.service, status.address) == (REPLICA, "rollouter", "127.0.0.1:5")
    assert (status.policy_version, status.policy_digest, status.max_slots) == (3, "digest", 4)
    assert status.state == "serving"
    assert status.metrics["adoption_pause_seconds"] == 0.25
    assert status.metrics["adoption_total_seconds"] == 2.0
    assert 0 <= status.metrics["wait_share"] <= 1


async def test_heartbeats_go_on_after_the_queue_was_away_and_tell_of_the_end():
    queue, engine = FakeQueue(), FakeEngine()
    queue.errors = [UnavailableError("away")]
    replica, worker, _ = make_replica(queue, engine)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(replica.run())
        await asyncio.sleep(0.1)
        queue.errors, queue.finished = [], True
        await asyncio.wait_for(worker.finished.wait(), 2)
        task.cancel()


async def test_a_replica_that_gets_no_answer_for_too_long_ends_and_says_why():
    queue, engine = FakeQueue(), FakeEngine()
    queue.errors = [UnavailableError("connection refused")]
    replica, worker, _ = make_replica(queue, engine, patience_seconds=0.1)
    await asyncio.wait_for(replica.run(), 2)
    assert worker.finished.is_set()
    assert "no answer for 0 s" in replica.problem.message
    assert "connection refused" in replica.problem.message


async def test_patience_begins_anew_with_every_answer():
    queue, engine = FakeQueue(), FakeEngine()
    replica, _, _ = make_replica(queue, engine, patience_seconds=0.3)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(replica.run())
        for _ in range(2):
            queue.errors = [UnavailableError("away")]
            await asyncio.sleep(0.2)
            queue.errors = []
            count = len(queue.statuses)
            await eventually(lambda count=count: len(queue.statuses) > count)
        task.cancel()
    assert replica.problem is None


async def test_a_replica_whose_run_has_ended_meanwhile_ends_at_once():
    queue, engine = FakeQueue(), FakeEngine()
    queue.errors = [UnavailableError("away")]
    replica, worker, _ = make_replica(queue, engine, run_ended=lambda: "the run has finished")
    await asyncio.wait_for(replica.run(), 2)
    assert worker.finished.is_set()
    assert replica.problem is None


async def test_the_last_word_of_a_replica_is_that_it_left():
    queue, engine = FakeQueue(), FakeEngine()
    replica, worker, _ = make_replica(queue, engine)
    await worker.drain()
    await replica.leave()
    assert [status.state for status in queue.statuses] == ["left"]
