import asyncio

import pytest

from services.common.errors import ConflictError, FencedError, InternalError, ReconcileRequiredError, UnavailableError
from services.common.types import Partition
from services.trainer.queue_link import QueueLink
from services.trainer.versions import VersionFile
from tests.unit.trainer.fakes import FakeQueue
from tests.unit.trainer.test_checkpoint import STATE
from tests.unit.trainer.test_feeding import make_feeder


async def test_a_call_outlives_a_queue_that_is_away(tmp_path):
    _, queue, link = await make_feeder(tmp_path)
    tries = []

    def away_twice():
        tries.append(1)
        if len(tries) < 3:
            raise UnavailableError("connection refused")

    queue.before["commit_batch"] = away_twice

    assert await link.commit((), partition=Partition.TRAIN, commit_number=1, policy_version=0) == 1
    assert len(tries) == 3


async def test_patience_has_an_end(tmp_path):
    _, queue, _ = await make_feeder(tmp_path)
    link = QueueLink(queue, patience_seconds=0.1)
    link.epoch = 1

    def away():
        raise UnavailableError("connection refused")

    queue.before["commit_batch"] = away

    with pytest.raises(UnavailableError):
        await link.commit((), partition=Partition.TRAIN, commit_number=1, policy_version=0)


async def test_a_replaced_trainer_is_told_at_once(tmp_path):
    _, queue, link = await make_feeder(tmp_path)
    queue.epoch += 1

    with pytest.raises(FencedError):
        await link.release(Partition.TRAIN)


async def test_a_measurements_commit_is_not_repeated_and_what_it_left_is_released(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    await feeder.feed()
    await link.lease_batch(Partition.TRAIN, num_groups=2, use_version=0, wait_seconds=1.0)
    tries = []

    def lost():
        tries.append(1)
        raise UnavailableError("connection reset")

    queue.before["commit_batch"] = lost
    await link.commit_once((), partition=Partition.TRAIN)

    assert len(tries) == 1
    assert not any(entry.is_leased for entry in queue.streams[Partition.TRAIN].entries.values())


async def test_a_measurements_commit_that_can_never_work_is_an_error(tmp_path):
    _, queue, link = await make_feeder(tmp_path)

    def refused():
        raise ConflictError("no")

    queue.before["commit_batch"] = refused

    with pytest.raises(ConflictError):
        await link.commit_once((), partition=Partition.VALIDATION)


async def test_a_partition_without_a_ledger_is_a_defect():
    queue = FakeQueue()
    queue.streams.pop(Partition.VALIDATION)

    with pytest.raises(InternalError, match="no ledger of partition validation"):
        await QueueLink(queue, patience_seconds=1.0).ledger(Partition.VALIDATION)


async def test_a_lost_run_is_created_again_once_and_nothing_moves_before_it_is_reconciled(tmp_path):
    feeder, queue, link = await make_feeder(tmp_path)
    queue.settings, before = None, link.epoch

    calls = [
        link.ledger(Partition.TRAIN),
        link.release(Partition.TRAIN),
        link.register_version(1, digest="d", branch=False),
    ]
    await asyncio.gather(*calls)

    assert link.epoch == before + 1
    assert link.is_out_of_step
    with pytest.raises(ReconcileRequiredError):
        await link.lease_batch(Partition.TRAIN, num_groups=1, use_version=1, wait_seconds=0.1)
    with pytest.raises(ReconcileRequiredError):
        await feeder.feed()
    await link.reconcile(STATE, policy_version=1)
    assert not link.is_out_of_step


async def test_a_lost_run_is_left_to_the_trainer_that_owns_the_run_directory(tmp_path):
    _, queue, link = await make_feeder(tmp_path)
    VersionFile(tmp_path / "version.json").claim(link.epoch + 1)
    queue.settings = None

    with pytest.raises(FencedError):
        await link.release(Partition.TRAIN)
    assert queue.settings is None
