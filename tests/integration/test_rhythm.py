"""Whatever rhythm a configuration asks for, one that is accepted never waits for itself: the run ends, and is exact.

Versions, checkpoints and bounds of the queue meet in one place, the capacity rule, which counts from the commit. The
configurations are drawn at random, with bounds far below what one batch needs, and run on the real queue.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.integration.trainer_scene import training_scene
from tests.redis_server import running_server
from tests.unit.trainer.fakes import make_config, make_rows

RUN_SECONDS = 60


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


SECTIONS = st.fixed_dictionaries(
    {
        "trainer": st.fixed_dictionaries(
            {
                "total_steps": st.integers(1, 7),
                "groups_per_step": st.integers(1, 4),
                "checkpoint_every": st.one_of(st.integers(1, 9), st.integers(100_000, 200_000)),
                "stall_seconds": st.just(20.0),
            }
        ),
        "async_": st.fixed_dictionaries(
            {
                "max_staleness": st.integers(0, 3),
                "updates_per_version": st.integers(1, 5),
                "on_stale": st.sampled_from(["refill", "drop"]),
            }
        ),
        "queue": st.fixed_dictionaries(
            {
                "max_queue_size": st.integers(0, 5),
                "max_queue_bytes": st.sampled_from([1, 1000, 10**9]),
                "when_full": st.sampled_from(["block", "drop_oldest"]),
            }
        ),
        "data": st.fixed_dictionaries({"max_epochs": st.sampled_from([0, 0, 1])}),
    }
)


async def run(redis_url, config):
    """Run it to its end; returns the trainer and the ledger."""
    async with training_scene(redis_url) as scene:
        trainer = scene.trainer(config, rows=make_rows(11))
        async with asyncio.timeout(RUN_SECONDS):
            await trainer.loop.run()
        return trainer, await scene.ledger()


@pytest.mark.timeout(300)
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(sections=SECTIONS)
def test_every_accepted_rhythm_ends(redis_url, sections):
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), **sections)
        trainer, ledger = asyncio.run(run(redis_url, config))

    wanted = config.trainer.total_steps * config.trainer.groups_per_step
    assert (ledger.lost, ledger.trained_twice, ledger.tasks.open) == (0, 0, 0)
    if config.data.max_epochs:
        assert ledger.tasks.consumed <= min(wanted, 11)
    else:
        assert ledger.tasks.consumed == wanted
        assert trainer.backend.steps_done == config.trainer.total_steps


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        (
            {"trainer": {"checkpoint_every": 60_000, "groups_per_step": 2, "total_steps": 10**6}},
            "leaves 120000 groups between two commits",
        ),
        ({"algorithm": {"min_group_members": 3}}, "a group never has more members than its size"),
    ],
)
def test_a_rhythm_that_is_refused_is_refused_for_a_reason(tmp_path, sections, reason):
    with pytest.raises(ValidationError, match=reason):
        make_config(tmp_path, **sections)
