import asyncio

from services.common.errors import UnavailableError
from services.common.types import ReplicaId, RunId
from services.trainer.heartbeat import Heartbeat
from services.trainer.queue_link import QueueLink
from services.trainer.status import TrainerState, TrainerStatus
from tests.unit.trainer.fakes import FakeQueue


def make_heartbeat(queue, **status):
    return Heartbeat(
        QueueLink(queue, patience_seconds=1.0),
        TrainerStatus(run_id=RunId("demo"), total_steps=20, **status),
        replica_id=ReplicaId("trainer-a"),
        interval_seconds=0.01,
    )


async def test_it_says_what_the_trainer_is_doing():
    queue = FakeQueue()
    heartbeat = make_heartbeat(
        queue, epoch=3, step=7, policy_version=9, state=TrainerState.TRAINING, metrics={"reward_mean": 0.5}
    )
    heartbeat.address = "127.0.0.1:5"

    await heartbeat.beat()

    status = queue.statuses[0]
    assert (status.replica_id, status.service, status.policy_version) == ("trainer-a", "trainer", 9)
    assert (status.state, status.address) == ("training", "127.0.0.1:5")
    assert status.metrics == {"reward_mean": 0.5, "step": 7.0, "total_steps": 20.0}


async def test_it_waits_for_the_takeover():
    queue = FakeQueue()

    await make_heartbeat(queue).beat()

    assert queue.statuses == []


async def test_a_queue_that_is_away_is_told_the_next_time():
    queue = FakeQueue()
    tries = []

    async def heartbeat(status):
        tries.append(status)
        if len(tries) == 1:
            raise UnavailableError("connection refused")

    queue.heartbeat = heartbeat
    task = asyncio.ensure_future(make_heartbeat(queue, epoch=1).run())
    async with asyncio.timeout(3):
        while len(tries) < 3:
            await asyncio.sleep(0.01)
    task.cancel()
