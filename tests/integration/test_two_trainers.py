"""Trainers that die, sleep through their replacement, and come back: no number ever names two sets of weights.

What sleeps here stops inside one call, as a frozen process does, and goes on after its successor has finished the run.
"""

import asyncio
import json
import shutil
import threading
from collections import Counter

import pytest

from services.common.errors import FencedError
from services.trainer.status import TrainerState
from tests.integration.trainer_scene import Snapshot, training_scene
from tests.redis_server import running_server
from tests.unit.trainer.fakes import KilledError, make_config

STEPS = 6


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


def config_of(folder, **sections):
    trainer = {"total_steps": STEPS, "checkpoint_every": 2, "stall_seconds": 30.0}
    return make_config(folder, trainer=trainer | sections.pop("trainer", {}), **sections)


def die():
    raise KilledError("the process died")


def digests_of(scene):
    """The digests that each version was served with."""
    found = {}
    for version, digest in scene.served:
        found.setdefault(version, set()).add(digest)
    return found


class Sleep:
    """Stops the thread that calls a function, until it is woken."""

    def __init__(self, call, *, at):
        self._call = call
        self._left = at
        self.asleep = threading.Event()
        self.awake = threading.Event()

    def __call__(self, *args):
        self._left -= 1
        if self._left == 0:
            self.asleep.set()
            assert self.awake.wait(60)
        return self._call(*args)


def fall_asleep(trainer, *, where):
    """Let a trainer fall asleep in its third step, its first checkpoint, or the export of the final model."""
    name, at = {"step": ("step", 3), "checkpoint": ("state", 1), "export": ("export", 1)}[where]
    sleep = Sleep(getattr(trainer.backend, name), at=at)
    setattr(trainer.backend, name, sleep)
    return sleep


def files_of(root):
    """Every file of a run, but for what is being written."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if not path.relative_to(root).parts[0].startswith(".")}


@pytest.mark.parametrize("store", ["kept", "wiped"])
@pytest.mark.parametrize("where", ["step", "checkpoint", "export"])
async def test_a_trainer_that_sleeps_through_its_replacement_changes_nothing(redis_url, tmp_path, where, store):
    config = config_of(tmp_path)
    async with training_scene(redis_url) as scene:
        frozen = scene.trainer(config)
        sleep = fall_asleep(frozen, where=where)
        running = asyncio.ensure_future(frozen.loop.run())
        await asyncio.to_thread(sleep.asleep.wait, 30)
        feeder_stops = frozen.loop._feeder.stop
        feeder_stops()  # A frozen process feeds nothing either.
        successor = scene.trainer(config)
        await successor.loop.run()
        before, served = files_of(successor.directory.root), list(scene.served)
        if store == "wiped":
            await scene.wipe()

        sleep.awake.set()
        with pytest.raises(FencedError):
            await running

        assert successor.status.state is TrainerState.FINISHED
        assert files_of(successor.directory.root) == before
        assert scene.served == served
        assert set(map(len, digests_of(scene).values())) == {1}
        ledger = json.loads((successor.directory.root / "ledger.json").read_text())
        assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
        assert ledger["train"]["tasks"]["consumed"] == 2 * STEPS


@pytest.mark.parametrize("file", ["kept", "lost"])
@pytest.mark.parametrize("store", ["kept", "wiped", "rolled back"])
async def test_a_number_never_names_two_sets_of_weights(redis_url, tmp_path, store, file):
    config = config_of(tmp_path, async_={"max_staleness": 2})
    async with training_scene(redis_url) as scene:
        snapshot = Snapshot(scene.redis)
        hooks = {("before", "register_version", 2): snapshot.take}
        for fail_at in (3, 5):
            trainer = scene.trainer(config, hooks=hooks)
            trainer.backend.fail_at = fail_at
            with pytest.raises(KilledError):
                await trainer.loop.run()
            hooks = {}
            if store == "wiped":
                await scene.wipe()
            elif store == "rolled back":
                await snapshot.put_back()
            if file == "lost":
                trainer.directory.version_file.unlink()
        last = scene.trainer(config)
        await last.loop.run()

        assert last.backend.steps_done == STEPS
        assert set(map(len, digests_of(scene).values())) == {1}
        numbers = Counter(version for version, _ in scene.served)
        assert max(numbers.values()) == 1
        assert (await scene.ledger()).lost == 0


async def test_trajectories_of_an_abandoned_branch_are_used_within_the_bound_by_number(redis_url, tmp_path):
    """After a crash the number of a version counts, not its branch: the same bound decides on all of them."""
    # So many that tasks are still fed when the first trainer dies.
    total = 2 * STEPS
    config = config_of(tmp_path, async_={"max_staleness": 2}, trainer={"checkpoint_every": 3, "total_steps": total})
    async with training_scene(redis_url) as scene:
        first = scene.trainer(config)
        first.backend.fail_at = 5
        first.backend.step = sleep = Sleep(first.backend.step, at=6)
        dying = asyncio.ensure_future(first.loop.run())
        await asyncio.to_thread(sleep.asleep.wait, 30)
        # (bound + versions since the commit + 1) x groups per version: the newest are sampled by versions 4 and 5.
        await scene.has_put(2 * (3 * 2 + (2 + 5 - 3 + 1) * 2))
        sleep.awake.set()
        with pytest.raises(KilledError):
            await dying
        abandoned = {version for version, _ in scene.served}

        resumed = scene.trainer(config)
        await resumed.loop.run()

        steps = resumed.directory.steps()
        assert [step["step"] for step in steps] == list(range(1, total + 1))
        assert max(step["staleness_max"] for step in steps) <= 2
        branch = resumed.shelf.versions[0]
        assert branch == max(abandoned) + 1
        after = [step for step in steps if step["version"] >= branch]
        assert after[0]["step"] == 4, "the steps since the checkpoint are done again"
        # Their number lies within the bound of the new branch, so they are used.
        assert any(step["version"] - step["staleness_max"] in abandoned for step in after)
        assert (await scene.ledger()).tasks.consumed == 2 * total


async def test_what_an_abandoned_branch_sampled_too_long_ago_is_sampled_again(redis_url, tmp_path):
    config = config_of(tmp_path, async_={"max_staleness": 0, "mode": "sync"}, trainer={"checkpoint_every": 3})
    async with training_scene(redis_url) as scene:
        first = scene.trainer(config)
        first.backend.fail_at = 4
        with pytest.raises(KilledError):
            await first.loop.run()

        resumed = scene.trainer(config)
        await resumed.loop.run()

        ledger = await scene.ledger()
        assert ledger.tasks.refilled > 0
        assert (ledger.tasks.consumed, ledger.lost, ledger.trained_twice) == (2 * STEPS, 0, 0)
        assert max(step["staleness_max"] for step in resumed.directory.steps()) == 0


async def test_a_run_directory_whose_checkpoints_are_lost_is_refused_while_the_queue_knows_better(redis_url, tmp_path):
    config = config_of(tmp_path)
    async with training_scene(redis_url) as scene:
        first = scene.trainer(config)
        first.backend.fail_at = 3
        with pytest.raises(KilledError):
            await first.loop.run()
        shutil.rmtree(first.directory.checkpoints)

        with pytest.raises(Exception, match="no whole checkpoint"):
            await scene.trainer(config).loop.run()
