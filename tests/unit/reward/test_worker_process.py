import os
import signal

import pytest

from services.common.errors import ConfigError, InternalError
from services.common.scoring import ScorerOptions
from services.reward.frames import encode_frame
from services.reward.worker_process import WorkerLostError, WorkerProcess, WorkerTimeoutError
from tests.unit.reward.builders import all_gone, named


async def start(*functions, preload=(), start_timeout_seconds=20.0):
    options = ScorerOptions(scorer="exact_match", python_scorers=tuple(named(function) for function in functions))
    return await WorkerProcess.start(
        options=options, preload=preload, timeout_seconds=5.0, start_timeout_seconds=start_timeout_seconds
    )


def frame(scorer="exact_match", metadata_json="{}", completion="4"):
    return encode_frame(
        {
            "scorer": scorer,
            "completion": completion,
            "answer": "4",
            "metadata_json": metadata_json,
            "messages": [],
        }
    )


async def test_a_started_worker_names_its_scorers_and_answers():
    worker = await start("length", preload=[named("length")])
    try:
        assert [info.name for info in worker.infos] == [named("length")]
        assert (await worker.ask(frame(), limit_seconds=5.0))["reward"] == 1.0
        assert (await worker.ask(frame(completion="x" * 5_000_000), limit_seconds=10.0))["reward"] == 0.0
    finally:
        await worker.kill()
    assert not worker.alive
    assert all_gone([worker.pid])


async def test_a_late_worker_is_killed_with_everything_it_started(tmp_path):
    worker = await start("hangs")
    pid_file = tmp_path / "pids"
    with pytest.raises(WorkerTimeoutError, match="2 s"):
        await worker.ask(frame(named("hangs"), f'{{"pid_file": "{pid_file}"}}'), limit_seconds=2.0)
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert worker.pid in pids
    assert len(pids) == 2
    assert all_gone(pids)


async def test_a_scorer_that_holds_the_interpreter_is_killed_too():
    worker = await start("holds_the_interpreter")
    with pytest.raises(WorkerTimeoutError):
        await worker.ask(frame(named("holds_the_interpreter")), limit_seconds=0.5)
    assert all_gone([worker.pid])


@pytest.mark.parametrize("by_itself", [True, False])
async def test_a_dead_worker_is_noticed(by_itself):
    worker = await start("dies")
    if not by_itself:
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match=r"exit code (7|-9)"):
        await worker.ask(frame(named("dies")), limit_seconds=5.0)
    assert not worker.alive


async def test_a_scorer_that_cannot_be_loaded_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match="no function 'nothing'"):
        await start("nothing", preload=[named("nothing")])


async def test_a_worker_that_is_not_ready_in_time_is_an_error():
    with pytest.raises(InternalError, match="did not start"):
        await start(start_timeout_seconds=0.001)
