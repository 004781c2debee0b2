import asyncio

from services.common.errors import UnavailableError
from services.common.types import Adoption
from services.rollouter.replica import Replica
from tests.integration.serving import eventually
from tests.unit.rollouter.fakes import REPLICA, FakeEngine, FakeQueue, FakeSync, make_worker


def make_replica(queue, engine):
    sync = FakeSync(engine)
    worker = make_worker(queue, engine, sync=sync)
    return Replica(queue, engine, worker=worker, sync=sync, heartbeat_seconds=0.02), worker, sync


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
