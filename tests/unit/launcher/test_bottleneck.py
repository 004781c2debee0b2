"""The advice names the side that is waited for, and a key to change."""

import os

import pytest

from services.common.config import RunConfig
from services.launcher.bottleneck import Cores, advise, cores_of

_LAPTOP = Cores(count=2, trainer_threads=1, rollouter_threads=2, replicas=2)
_SERVER = Cores(count=32, trainer_threads=4, rollouter_threads=8, replicas=8)
_GPU = Cores(count=16, trainer_threads=0, rollouter_threads=0, replicas=1)


@pytest.mark.parametrize(
    ("trainer", "rollouters", "part"),
    [
        (0.7, 0.1, "rollouters are the bottleneck"),
        (0.7, None, "raise rollout.replicas"),
        (0.1, 0.7, "trainer is the bottleneck"),
        (0.7, 0.7, "raise async.max_staleness"),
        (0.1, 0.1, "Both sides are busy"),
        (0.1, None, "Both sides are busy"),
        (0.4, 0.4, "No side holds the other up"),
        (None, 0.4, "Not enough was measured"),
    ],
)
def test_who_waits_tells_who_is_waited_for(trainer, rollouters, part):
    assert part in advise(trainer_wait_share=trainer, rollouter_wait_share=rollouters)


def test_the_measured_shares_are_shown():
    assert "waited 70% of its time, the rollouters 10%" in advise(trainer_wait_share=0.7, rollouter_wait_share=0.1)


@pytest.mark.parametrize(("trainer", "rollouters"), [(0.1, 0.3), (0.6, 0.1), (0.0, 0.6)])
def test_cores_that_are_taken_are_what_holds_the_run_up(trainer, rollouters):
    advice = advise(trainer_wait_share=trainer, rollouter_wait_share=rollouters, cores=_LAPTOP)
    assert "cores of this machine are the bottleneck" in advice
    assert "1 trainer thread and 2 rollouter threads on 2 cores" in advice
    assert "raise" not in advice


def test_a_slow_trainer_beside_free_cores_may_take_more_threads():
    advice = advise(trainer_wait_share=0.1, rollouter_wait_share=0.9, cores=_LAPTOP)
    assert "trainer is the bottleneck" in advice
    assert "more trainer.threads may help (1 trainer thread and 2 rollouter threads on 2 cores)" in advice
    assert "fewer rollout.replicas would do" in advice


def test_replicas_are_asked_for_only_where_cores_are_free():
    assert "raise rollout.replicas" in advise(trainer_wait_share=0.7, rollouter_wait_share=0.1, cores=_SERVER)
    assert "raise rollout.replicas" in advise(trainer_wait_share=0.7, rollouter_wait_share=0.1, cores=_GPU)


def test_threads_help_no_trainer_on_a_gpu_and_a_lone_rollouter_is_not_too_many():
    advice = advise(trainer_wait_share=0.1, rollouter_wait_share=0.7, cores=_GPU)
    assert "threads" not in advice
    assert "rollout.replicas" not in advice


def test_who_computes_on_the_cores_comes_from_the_configuration():
    sections = {"model": {"path": "m"}, "data": {"source": "rows.jsonl"}, "rollout": {"replicas": 3}}
    on_cpu = {"device": "cpu", "threads": 2}
    cores = cores_of(RunConfig.model_validate({**sections, "trainer": on_cpu, "engine": on_cpu}))
    assert (cores.trainer_threads, cores.rollouter_threads, cores.replicas) == (2, 6, 3)
    assert 1 <= cores.count <= os.cpu_count()
    other = {"trainer": {"device": "cuda"}, "engine": {"device": "cpu", "threads": 0}}
    cores = cores_of(RunConfig.model_validate({**sections, **other}))
    assert (cores.trainer_threads, cores.rollouter_threads) == (0, 3 * cores.count)
