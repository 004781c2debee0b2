"""Redis loses everything, or goes back in time, while the trainer lives: the run ends as if nothing had happened."""

import pytest

from tests.integration.trainer_scene import Snapshot, training_scene
from tests.redis_server import running_server
from tests.unit.trainer.fakes import make_config, make_rows

STEPS = 6


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


def sync_config(folder, **sections):
    trainer = {"total_steps": STEPS, "checkpoint_every": 2, "stall_seconds": 20.0, **sections.pop("trainer", {})}
    return make_config(folder, async_={"mode": "sync", "max_staleness": 0}, trainer=trainer, **sections)


@pytest.fixture(scope="module")
def undisturbed(redis_url, tmp_path_factory):
    """The weights of a run that nothing happened to, by its configuration's `checkpoint_every`."""
    found = {}

    async def weights(every=2):
        if every not in found:
            config = sync_config(tmp_path_factory.mktemp("undisturbed"), trainer={"checkpoint_every": every})
            async with training_scene(redis_url) as scene:
                trainer = scene.trainer(config)
                await trainer.loop.run()
            found[every] = trainer.backend.value.tolist()
        return found[every]

    return weights


async def assert_exact(scene, trainer, weights):
    """The run is done as if nothing had happened, and its account says so."""
    assert trainer.backend.value.tolist() == weights
    ledger = await scene.ledger()
    assert (ledger.lost, ledger.trained_twice) == (0, 0)
    assert (ledger.tasks.consumed, ledger.tasks.open) == (2 * STEPS, 0)
    assert [step["step"] for step in trainer.directory.steps()] == list(range(1, STEPS + 1))
    versions = [version for version, _ in scene.served]
    assert len(versions) == len(set(versions))


def named(moment):
    return "-".join(map(str, moment))


MOMENTS = [
    ("before", "enqueue_tasks", 1),
    ("after", "enqueue_tasks", 2),
    ("before", "register_version", 1),
    ("before", "register_version", 4),
    ("after", "register_version", 3),
    ("before", "lease_batch", 1),
    ("after", "lease_batch", 1),
    ("after", "lease_batch", 4),
    ("before", "commit_batch", 1),
    ("after", "commit_batch", 1),
    ("before", "commit_batch", 2),
    ("before", "get_ledger", 1),
    ("before", "commit_batch", 4),
    ("after", "commit_batch", 4),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=named)
async def test_a_trainer_outlives_the_loss_of_everything_in_redis(redis_url, undisturbed, tmp_path, moment):
    weights = await undisturbed()
    async with training_scene(redis_url) as scene:
        trainer = scene.trainer(sync_config(tmp_path), hooks={moment: scene.wipe})
        await trainer.loop.run()
        await assert_exact(scene, trainer, weights)


@pytest.mark.parametrize("every", [1, 4])
async def test_it_is_lost_again_and_again(redis_url, undisturbed, tmp_path, every):
    weights = await undisturbed(every)
    async with training_scene(redis_url) as scene:
        hooks = {("after", "lease_batch", at): scene.wipe for at in (2, 3, 5, 8)}
        trainer = scene.trainer(sync_config(tmp_path, trainer={"checkpoint_every": every}), hooks=hooks)
        await trainer.loop.run()
        await assert_exact(scene, trainer, weights)


@pytest.mark.parametrize(
    ("taken", "put_back"),
    [
        (("after", "enqueue_tasks", 1), ("after", "lease_batch", 1)),
        (("after", "lease_batch", 1), ("before", "lease_batch", 2)),
        (("before", "lease_batch", 2), ("before", "commit_batch", 1)),
        (("before", "commit_batch", 1), ("after", "commit_batch", 1)),
        (("before", "lease_batch", 1), ("after", "commit_batch", 2)),
        (("after", "commit_batch", 1), ("after", "lease_batch", 4)),
        (("before", "register_version", 1), ("after", "commit_batch", 3)),
        (("after", "lease_batch", 2), ("after", "commit_batch", 4)),
    ],
    ids=named,
)
async def test_a_redis_that_goes_back_in_time_costs_only_work(redis_url, undisturbed, tmp_path, taken, put_back):
    weights = await undisturbed()
    async with training_scene(redis_url) as scene:
        snapshot = Snapshot(scene.redis)
        trainer = scene.trainer(sync_config(tmp_path), hooks={taken: snapshot.take, put_back: snapshot.put_back})
        await trainer.loop.run()
        await assert_exact(scene, trainer, weights)


@pytest.mark.parametrize(
    "moment", [("before", "lease_batch", 1), ("after", "lease_batch", 1), ("after", "commit_batch", 1)], ids=named
)
async def test_a_measurement_is_made_anew_when_the_store_was_lost_under_it(redis_url, undisturbed, tmp_path, moment):
    weights = await undisturbed()
    config = sync_config(tmp_path, validation={"size": 3, "group_size": 2})
    async with training_scene(redis_url) as scene:
        trainer = scene.trainer(config, held_out=make_rows(3), hooks={moment: scene.wipe})
        await trainer.loop.run()
        await assert_exact(scene, trainer, weights)
    assert [(entry["step"], entry["num_attempts"]) for entry in trainer.directory.validations()] == [(0, 6), (STEPS, 6)]
