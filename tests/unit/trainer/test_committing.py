"""Checkpoint, then commit; whole runs with deaths between the two are in `test_loop.py`."""

import pytest

from services.common.errors import UnavailableError
from services.common.types import Partition
from services.trainer.account import Account
from services.trainer.backend_thread import BackendThread
from services.trainer.checkpoint import CheckpointStore
from services.trainer.committing import Committer
from services.trainer.publishing import Publisher
from services.trainer.versions import VersionFile
from tests.unit.trainer.fakes import FakeBackend, FakeShelf
from tests.unit.trainer.test_account import make_group
from tests.unit.trainer.test_feeding import make_feeder


@pytest.fixture
async def fed(tmp_path):
    account = Account()
    feeder, queue, link = await make_feeder(tmp_path, account=account)
    await feeder.feed()
    return account, feeder, queue, link


@pytest.fixture
async def scene(tmp_path, fed):
    account, feeder, queue, link = fed
    versions = VersionFile(tmp_path / "version.json")
    publisher = Publisher(link, FakeShelf(), versions, run_id="demo")
    await publisher.assign(above=-1)
    thread, store = BackendThread(), CheckpointStore(tmp_path / "checkpoints", keep=2)
    committer = Committer(
        link,
        FakeBackend(),
        thread=thread,
        checkpoints=store,
        publisher=publisher,
        versions=versions,
        feeder=feeder,
        account=account,
        newest=None,
        seconds=lambda: 12.0,
    )
    yield committer, account, queue, store
    thread.close()


async def test_a_commit_says_what_the_checkpoint_on_disk_says(scene):
    committer, account, queue, store = scene
    assert committer.saved_step == 0
    account.note_step([make_group(0), make_group(1)], num_tokens=4)
    await committer.save()
    assert queue.commits == []
    account.note_step([make_group(2)], num_tokens=2)

    await committer.commit()

    saved = store.newest().run
    assert queue.commits == [(1, saved.results)]
    assert [result.task_id for result in saved.results] == ["00000000", "00000001"]
    assert (saved.next_sequence, saved.seconds, committer.saved_step) == (4, 12.0, 1)
    assert account.has_pending


async def test_a_queue_that_is_out_of_step_gets_everything_that_was_trained(scene):
    committer, account, queue, store = scene
    account.note_step([make_group(0)], num_tokens=2)

    await committer.reconcile("it forgot")

    assert queue.reconciled[0]["first_open_sequence"] == 1
    assert queue.commit_number == store.newest().run.commit_number == account.commit_number == 1
    assert not account.has_pending


async def test_an_unreachable_queue_leaves_the_checkpoint_for_the_next_trainer(scene):
    committer, account, queue, store = scene
    account.note_step([make_group(0)], num_tokens=2)
    await committer.save()

    def away():
        raise UnavailableError("connection refused")

    queue.before["commit_batch"] = away

    with pytest.raises(UnavailableError):
        await committer.commit()
    assert store.newest().run.commit_number == 1
    assert not queue.streams[Partition.TRAIN].consumed


async def test_the_end_of_the_run_is_a_commit_of_its_own(scene):
    committer, account, queue, _ = scene
    account.note_step([make_group(0)], num_tokens=2)
    await committer.save()
    await committer.commit()

    await committer.close_run()

    assert queue.commits[-1] == (2, ())
    assert queue.finished


async def test_a_checkpoint_contains_what_the_queue_gave_up(scene):
    committer, account, queue, store = scene
    stream = queue.streams[Partition.TRAIN]
    del stream.entries["00000001"]
    stream.ended["00000001"] = "dead_lettered"
    stream.dead_lettered += 1
    account.note_step([make_group(0)], num_tokens=2)

    await committer.save()

    saved = store.newest().run
    assert (saved.first_open_sequence, saved.ended_sequences, saved.num_dropped) == (2, (), 1)


async def test_a_checkpoint_keeps_the_drops_that_the_store_forgot(scene):
    committer, account, queue, store = scene
    queue.streams[Partition.TRAIN].dropped = 3
    account.note_step([make_group(0)], num_tokens=2)
    await committer.save()
    queue.streams[Partition.TRAIN].dropped = 1
    account.note_step([make_group(1)], num_tokens=2)

    await committer.save()

    assert store.newest().run.num_dropped == 3
