"""What a trainer does first; whole restarts are in `test_loop.py`."""

from dataclasses import replace

import pytest

from services.common.errors import ReconcileRequiredError
from services.common.types import Partition
from services.trainer.backend_thread import BackendThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.config import run_settings
from services.trainer.queue_link import QueueLink
from services.trainer.takeover import take_over
from tests.unit.trainer.fakes import FakeBackend, FakeQueue, make_config
from tests.unit.trainer.test_checkpoint import STATE, backend_state


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


async def begin(tmp_path, queue, store):
    backend = FakeBackend()
    thread = BackendThread()
    takeover = await take_over(
        QueueLink(queue, patience_seconds=1.0),
        backend,
        store,
        settings=run_settings(make_config(tmp_path)),
        thread=thread,
    )
    thread.close()
    return takeover, backend


def known_queue(tmp_path, *, commit_number):
    queue = FakeQueue()
    queue.settings = run_settings(make_config(tmp_path))
    queue.commit_number = commit_number
    queue.version, queue.replica_version = 14, 13
    return queue


async def test_a_new_run_begins_at_nothing_and_is_no_branch(tmp_path, store):
    takeover, backend = await begin(tmp_path, FakeQueue(), store)

    assert takeover.checkpoint is None
    assert (takeover.newest_version, takeover.is_branch, backend.steps_done) == (-1, False, 0)


@pytest.mark.parametrize("commit_number", [1, 2])
async def test_the_commit_of_the_checkpoint_is_repeated(tmp_path, store, commit_number):
    store.save(backend_state(), STATE)
    queue = known_queue(tmp_path, commit_number=commit_number)

    takeover, backend = await begin(tmp_path, queue, store)

    assert queue.commits == [(2, STATE.results)]
    assert queue.commit_number == 2
    assert queue.reconciled == []
    assert (takeover.newest_version, takeover.is_branch, backend.steps_done) == (14, True, 10)


@pytest.mark.parametrize("commit_number", [0, 3, 7])
async def test_any_other_number_is_reconciled(tmp_path, store, commit_number):
    store.save(backend_state(), STATE)
    queue = known_queue(tmp_path, commit_number=commit_number)

    await begin(tmp_path, queue, store)

    assert queue.commits == []
    assert queue.reconciled == [
        {"commit_number": 2, "first_open_sequence": 40, "num_consumed": 42, "num_filtered": 1, "num_dropped": 3}
    ]
    assert queue.version == 14


async def test_a_run_that_the_queue_lost_is_reconciled_even_when_the_numbers_fit(tmp_path, store):
    store.save(backend_state(), replace(STATE, commit_number=1))
    queue = FakeQueue()

    await begin(tmp_path, queue, store)

    assert queue.commits == []
    assert queue.reconciled[0]["commit_number"] == 1


async def test_what_a_dead_trainer_had_leased_is_released(tmp_path, store):
    from tests.unit.trainer.test_feeding import make_feeder

    feeder, queue, link = await make_feeder(tmp_path)
    await feeder.feed()
    await link.lease_batch(Partition.TRAIN, num_groups=2, use_version=0, wait_seconds=1.0)

    await begin(tmp_path, queue, store)

    assert not any(entry.is_leased for entry in queue.streams[Partition.TRAIN].entries.values())


async def test_commits_without_a_checkpoint_are_refused(tmp_path, store):
    with pytest.raises(ReconcileRequiredError, match="has 4 commits of this run and there is no whole checkpoint"):
        await begin(tmp_path, known_queue(tmp_path, commit_number=4), store)


async def test_a_finished_run_is_left_as_it_is(tmp_path, store):
    store.save(backend_state(), STATE)
    queue = known_queue(tmp_path, commit_number=3)
    queue.finished = True

    takeover, _ = await begin(tmp_path, queue, store)

    assert takeover.run.finished
    assert queue.commits == queue.reconciled == []
