"""Small builders for the tests of the reward service."""

import asyncio
import contextlib
import json
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path

from services.common.scoring import ScorerOptions
from services.common.types import Message, RunId, ScoreRequest, ScoringSpec
from services.reward.config import ServiceConfig
from services.reward.desk import ScoreDesk
from services.reward.pool import WorkerPool

MODULE = "python:tests.unit.reward.scorer_functions"


def config(*functions, scorer="exact_match", extract="", **settings):
    options = ScorerOptions(
        scorer=scorer, extract=extract, python_scorers=tuple(named(function) for function in functions)
    )
    return ServiceConfig(options=options, **settings)


def named(function):
    return f"{MODULE}:{function}"


def request(completion="4", *, answer="4", trajectory="train/00000000/0/0/0", scorer="", metadata=None):
    return ScoreRequest(
        run_id=RunId("run"),
        trajectory_id=trajectory,
        messages=(Message(role="user", content="2 + 2?"),),
        completion=completion,
        scoring=ScoringSpec(answer=answer, scorer=scorer, metadata_json=json.dumps(metadata or {})),
    )


@asynccontextmanager
async def running_pool(settings):
    pool = WorkerPool(settings)
    infos = await pool.start()
    async with served(pool):
        yield pool, infos


@asynccontextmanager
async def running_desk(settings):
    pool = WorkerPool(settings)
    desk = ScoreDesk(settings, pool)
    await desk.start()
    async with served(pool):
        yield desk, pool


@asynccontextmanager
async def served(pool):
    """Run a started pool beside the block, and close it as a server does."""
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(pool.run())
            try:
                yield
            finally:
                serving.cancel()
    finally:
        await pool.close()


def all_gone(pids, timeout_seconds=5.0):
    """Whether the processes are gone; the system takes a moment to end a killed one."""
    deadline = time.monotonic() + timeout_seconds
    while any(exists(int(pid)) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def exists(pid):
    """Whether a process is there and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path("/proc").is_dir()
