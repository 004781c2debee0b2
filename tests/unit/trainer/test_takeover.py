"""What a trainer does first; whole restarts are in `test_loop.py`."""

from dataclasses import replace

import pytest

from services.common.errors import FencedError, ReconcileRequiredError
from services.common.types import Partition
from services.trainer.backend_thread import BackendThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.config import run_settings
from services.trainer.queue_link import QueueLink
from services.trainer.takeover import LOST_FILE_GAP, take_over
from services.trainer.versions import VersionFile
from tests.unit.trainer.fakes import FakeBackend, FakeQueue, make_config
from tests.unit.trainer.test_checkpoint import STATE, backend_state, never


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


async def begin(tmp_path, queue, store, *, has_begun=False, has_lost_versions=False):
    backend = FakeBackend()
    thread = BackendThread()
    versions = VersionFile(tmp_path / "version.json")
    if not has_lost_versions and versions.is_missing:
        versions.claim(0)
    takeover = await take_over(
        QueueLink(queue, patience_seconds=1.0),
        backend,
        store,
        settings=run_settings(make_config(tmp_path)),
        thread=thread,
        versions=versions,
        has_begun=has_begun,
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
    store.save(backend_state(), STATE, check=never)
    queue = known_queue(tmp_path, commit_number=commit_number)

    takeover, backend = await begin(tmp_path, queue, store)

    assert queue.commits == [(2, STATE.results)]
    assert queue.commit_number == 2
    assert queue.reconciled == []
    assert (takeover.newest_version, takeover.is_branch, backend.steps_done) == (14, True, 10)


@pytest.mark.parametrize("commit_number", [0, 3, 7])
async def test_any_other_number_is_reconciled(tmp_path, store, commit_number):
    store.save(backend_state(), STATE, check=never)
    queue = known_queue(tmp_path, commit_number=commit_number)

    await begin(tmp_path, queue, store)

    assert queue.commits == []
    assert queue.reconciled == [
        {"commit_number": 2, "first_open_sequence": 40, "num_consumed": 42, "num_filtered": 1, "num_dropped": 3}
    ]
    assert queue.version == 14


async def test_a_run_that_the_queue_lost_is_reconciled_even_when_the_numbers_fit(tmp_path, store):
    store.save(backend_state(), replace(STATE, commit_number=1), check=never)
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
    store.save(backend_state(), STATE, check=never)
    queue = known_queue(tmp_path, commit_number=3)
    queue.finished = True

    takeover, _ = await begin(tmp_path, queue, store)

    assert takeover.run.finished
    assert queue.commits == queue.reconciled == []


async def test_a_lost_version_file_leaves_out_more_numbers_than_can_have_been_given_out(tmp_path, store):
    store.save(backend_state(), STATE, check=never)

    takeover, _ = await begin(tmp_path, known_queue(tmp_path, commit_number=2), store, has_lost_versions=True)

    assert takeover.newest_version == 14 + LOST_FILE_GAP


@pytest.mark.parametrize(("has_begun", "newest"), [(False, -1), (True, LOST_FILE_GAP - 1)])
async def test_without_a_checkpoint_the_steps_say_whether_the_version_file_was_lost(tmp_path, store, has_begun, newest):
    takeover, _ = await begin(tmp_path, FakeQueue(), store, has_begun=has_begun, has_lost_versions=True)

    assert takeover.newest_version == newest


async def test_damaged_checkpoints_without_a_whole_one_are_no_reason_to_begin_anew(tmp_path, store):
    (store.save(backend_state(), STATE, check=never) / "state.json").unlink()

    with pytest.raises(ReconcileRequiredError, match=r"no checkpoint of this run is whole .*step-00000010-epoch-5"):
        await begin(tmp_path, FakeQueue(), store)


async def test_a_run_directory_that_a_newer_trainer_took_meanwhile_is_left_to_it(tmp_path, store):
    queue = FakeQueue()

    class Slept(FakeQueue):
        async def create_run(self, settings, *, owner_id):
            state = await queue.create_run(settings, owner_id=owner_id)
            VersionFile(tmp_path / "version.json").claim(state.epoch + 1)
            return state

    with pytest.raises(FencedError):
        await begin(tmp_path, Slept(), store)


async def test_the_epoch_exceeds_that_of_the_run_directory_when_the_store_counts_from_less(tmp_path, store):
    VersionFile(tmp_path / "version.json").claim(40)
    queue = FakeQueue()

    await begin(tmp_path, queue, store, has_lost_versions=True)

    assert queue.epoch == VersionFile(tmp_path / "version.json").epoch == 41
