import asyncio
import json
import os
import signal

import pytest

from services.common.errors import ConfigError, OverloadedError
from services.common.types import Failure, FailureReason
from services.reward.frames import encode_frame
from services.reward.pool import WorkerPool
from services.reward.scorers.port import Verdict
from tests.unit.reward.builders import all_gone, config, named, running_pool


def frame(scorer="exact_match", **metadata):
    return encode_frame(
        {"scorer": scorer, "completion": "4", "answer": "4", "metadata_json": json.dumps(metadata), "messages": []}
    )


async def wanted(pool, job):
    job.waiters += 1
    async with asyncio.timeout(20):
        return await job.outcome


async def test_jobs_are_judged_in_the_order_they_came(tmp_path):
    async with running_pool(config()) as (pool, infos):
        assert [info.name for info in infos] == ["exact_match"]
        jobs = [pool.submit(frame()) for _ in range(5)]
        assert pool.pending == 5
        for job in jobs:
            assert await wanted(pool, job) == Verdict(reward=1.0, parts={"correct": 1.0})
        assert pool.pending == 0
        assert jobs[0].frame == b""


async def test_a_worker_that_dies_fails_its_own_score_and_no_other():
    async with running_pool(config("dies")) as (pool, _):
        first = pool.pids
        bad, good = pool.submit(frame(named("dies"))), pool.submit(frame())
        failure = await wanted(pool, bad)
        assert isinstance(failure, Failure)
        assert failure.reason is FailureReason.REWARD_ERROR
        assert "exit code 7" in failure.message
        assert (await wanted(pool, good)).reward == 1.0
        assert pool.pids != first


async def test_a_score_that_takes_too_long_is_a_failure_and_leaves_no_process(tmp_path):
    pid_file = tmp_path / "pids"
    async with running_pool(config("hangs", timeout_seconds=1.5)) as (pool, _):
        failure = await wanted(pool, pool.submit(frame(named("hangs"), pid_file=str(pid_file))))
        assert failure.reason is FailureReason.REWARD_TIMEOUT
        assert "1.5 s" in failure.message
        assert all_gone(pid_file.read_text().split())
        assert (await wanted(pool, pool.submit(frame()))).reward == 1.0


async def test_a_worker_that_was_killed_while_idle_costs_no_score():
    async with running_pool(config()) as (pool, _):
        os.kill(pool.pids[0], signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert all_gone(pool.pids[:1])
        assert (await wanted(pool, pool.submit(frame()))).reward == 1.0


async def test_more_than_the_bound_is_refused_with_a_hint():
    async with running_pool(config(max_pending=2)) as (pool, _):
        jobs = [pool.submit(frame()) for _ in range(2)]
        with pytest.raises(OverloadedError, match="2 of 2 scores") as caught:
            pool.submit(frame())
        assert float(caught.value.metadata["retry_after_seconds"]) > 0
        for job in jobs:
            await wanted(pool, job)
        pool.submit(frame())


async def test_what_nobody_waits_for_leaves_the_line():
    async with running_pool(config(max_pending=1)) as (pool, _):
        job = pool.submit(frame())
        pool.abandon(job)
        assert job.outcome.cancelled()
        assert pool.pending == 0
        assert (await wanted(pool, pool.submit(frame()))).reward == 1.0


async def test_several_workers_work_at_the_same_time(tmp_path):
    async with running_pool(config("meets", workers=2)) as (pool, _):
        pairs = [("a", "b"), ("b", "a")]
        jobs = [pool.submit(frame(named("meets"), folder=str(tmp_path), me=me, other=other)) for me, other in pairs]
        assert [(await wanted(pool, job)).reward for job in jobs] == [1.0, 1.0]


async def test_the_end_of_the_pool_ends_its_processes_and_its_jobs(tmp_path):
    async with running_pool(config("slow", workers=2)) as (pool, _):
        pids = pool.pids
        jobs = [pool.submit(frame(named("slow"), seconds=30, log=str(tmp_path / "log"))) for _ in range(4)]
        await asyncio.sleep(0.3)
    assert all(job.outcome.cancelled() for job in jobs)
    assert all_gone(pids)


async def test_a_scorer_that_cannot_be_loaded_stops_the_start_and_leaves_no_process():
    pool = WorkerPool(config("nothing", workers=2))
    with pytest.raises(ConfigError, match="nothing"):
        await pool.start()
    assert all_gone(pool.pids)
