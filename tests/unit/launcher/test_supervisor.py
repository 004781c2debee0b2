"""Supervision with tiny dummy processes."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest

from services.launcher.log_file import LogFile
from services.launcher.process import Command
from services.launcher.supervisor import EndKind, RestartPolicy, Service, ServiceState, SupervisedService

_POLICY = RestartPolicy(
    initial_pause_seconds=0.01,
    max_pause_seconds=0.05,
    settle_seconds=0.1,
    max_deaths_in_a_row=3,
    max_restarts=4,
    window_seconds=60.0,
    start_seconds=0.6,
    hang_seconds=0.3,
)
_SLEEP = "import time; print('up', flush=True); time.sleep(60)"


async def _yes() -> bool:
    return True


async def _no() -> bool:
    return False


async def _until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 s")


def _supervised(tmp_path, code, *, policy=_POLICY, **options):
    reports = []
    service = Service(
        name="dummy",
        command=lambda starts: Command(argv=(sys.executable, "-c", code, str(starts))),
        log=LogFile(tmp_path / "dummy.log"),
        **options,
    )
    return SupervisedService(service, report=reports.append, policy=policy), reports


async def test_a_final_exit_status_ends_the_service(tmp_path):
    supervised, reports = _supervised(tmp_path, "import sys; sys.exit(3)", final_codes=frozenset({0, 3}))
    end = await supervised.run()
    assert (end.kind, end.code, reports) == (EndKind.DONE, 3, [])
    assert supervised.state is ServiceState.ENDED


async def test_a_killed_service_is_started_again_and_says_so(tmp_path):
    supervised, reports = _supervised(tmp_path, _SLEEP, probe=_yes)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervised.run())
        assert await supervised.wait_serving()
        first = supervised.pid
        os.kill(first, signal.SIGKILL)
        await _until(lambda: supervised.pid not in (first, None) and supervised.state is ServiceState.SERVING)
        assert supervised.num_restarts == 1
        assert "dummy died (killed by SIGKILL)" in reports[0]
        await supervised.stop(grace_seconds=5)
    assert task.result().kind is EndKind.STOPPED


async def test_a_service_that_never_serves_is_given_up_with_its_last_words(tmp_path):
    code = "import sys; print('no such file', file=sys.stderr); sys.exit(1)"
    supervised, _ = _supervised(tmp_path, code, probe=_no)
    end = await supervised.run()
    assert end.kind is EndKind.GAVE_UP
    assert "dummy died 3 times" in end.message
    assert "exit status 1" in end.message
    assert "no such file" in end.message
    assert not await supervised.wait_serving()


async def test_too_many_restarts_within_the_window_are_the_end(tmp_path):
    code = "import os, time; time.sleep(0.3); os.kill(os.getpid(), 9)"
    supervised, reports = _supervised(tmp_path, code, probe=_yes)
    end = await supervised.run()
    assert end.kind is EndKind.GAVE_UP
    assert "dummy died 5 times in 60 s" in end.message
    assert len(reports) == 4


_FAILS_AFTER_SERVING = "import time; print('up'); time.sleep(0.15); raise SystemExit('no room left')"


async def test_errors_after_serving_for_a_short_while_are_counted_in_a_row(tmp_path):
    policy = replace(_POLICY, max_errors_in_a_row=3, max_restarts=100)
    supervised, reports = _supervised(tmp_path, _FAILS_AFTER_SERVING, probe=_yes, policy=policy)
    end = await supervised.run()
    assert (end.kind, len(reports)) == (EndKind.GAVE_UP, 2)
    assert end.message == (
        "dummy died 3 times by its own error without serving 60 s in between (exit status 1); "
        f"it said last: no room left; log: {tmp_path / 'dummy.log'}"
    )


async def test_serving_for_long_begins_the_row_of_errors_anew(tmp_path):
    policy = replace(_POLICY, max_errors_in_a_row=2, max_restarts=3, steady_seconds=0.05)
    supervised, _ = _supervised(tmp_path, _FAILS_AFTER_SERVING, probe=_yes, policy=policy)
    assert "dummy died 4 times in 60 s" in (await supervised.run()).message


async def test_errors_without_progress_are_the_end_however_long_it_served(tmp_path):
    policy = replace(_POLICY, max_errors_in_a_row=3, max_restarts=100, steady_seconds=0.05)
    reached = iter([0, 1, 2, 3])
    supervised, reports = _supervised(
        tmp_path, _FAILS_AFTER_SERVING, probe=_yes, policy=policy, progress=lambda: next(reached, 3)
    )
    end = await supervised.run()
    # Three deaths after progress, the last of which is the first of the row.
    assert (end.kind, len(reports)) == (EndKind.GAVE_UP, 4)
    assert "died 3 times by its own error without getting any further" in end.message


async def test_kills_from_outside_without_progress_end_at_a_larger_bound(tmp_path):
    policy = replace(_POLICY, max_errors_in_a_row=2, max_restarts=3, window_seconds=0.01)
    code = "import os, time; time.sleep(0.3); os.kill(os.getpid(), 9)"
    supervised, reports = _supervised(tmp_path, code, probe=_yes, policy=policy, progress=lambda: 7)
    end = await supervised.run()
    assert (end.kind, len(reports)) == (EndKind.GAVE_UP, 3)
    assert "dummy died 4 times without getting any further (killed by SIGKILL)" in end.message


async def test_a_refused_configuration_is_not_tried_twice(tmp_path):
    supervised, reports = _supervised(tmp_path, "import sys; sys.exit(2)", probe=_no)
    end = await supervised.run()
    assert (end.kind, end.code, reports) == (EndKind.GAVE_UP, 2, [])
    assert "refused to start" in end.message


async def test_a_service_that_does_not_come_up_is_killed(tmp_path):
    supervised, reports = _supervised(tmp_path, _SLEEP, probe=_no)
    end = await supervised.run()
    assert end.kind is EndKind.GAVE_UP
    assert end.code == -signal.SIGKILL
    assert "did not answer for 0.6 s" in reports[0]


async def test_a_service_without_probe_counts_as_serving_after_a_while(tmp_path):
    supervised, _ = _supervised(tmp_path, _SLEEP)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervised.run())
        assert await supervised.wait_serving()
        await supervised.stop(grace_seconds=5)


async def test_stop_kills_what_ignores_it(tmp_path):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + _SLEEP
    lines = []
    supervised, reports = _supervised(tmp_path, code, on_line=lines.append)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervised.run())
        await _until(lambda: "up" in lines)
        await supervised.stop(grace_seconds=0.3)
    assert task.result().code == -signal.SIGKILL
    assert "did not stop within 0.3 s" in reports[0]


async def test_stop_during_a_pause_ends_at_once(tmp_path):
    policy = replace(_POLICY, initial_pause_seconds=30.0, max_pause_seconds=30.0)
    supervised, reports = _supervised(tmp_path, "raise SystemExit(1)", policy=policy)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervised.run())
        await _until(lambda: reports)
        await supervised.stop(grace_seconds=1)
    assert task.result().kind is EndKind.STOPPED


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_is_logged_and_standard_output_is_passed_on(tmp_path, stream):
    lines = []
    code = f"import sys; print('hello', file=sys.{stream})"
    supervised, _ = _supervised(tmp_path, code, on_line=lines.append, final_codes=frozenset({0}))
    await supervised.run()
    assert (tmp_path / "dummy.log").read_text() == "hello\n"
    assert lines == (["hello"] if stream == "stdout" else [])


async def test_the_command_knows_how_often_it_was_started(tmp_path):
    lines = []
    code = "import sys; print(sys.argv[1]); sys.exit(0 if sys.argv[1] == '2' else 1)"
    supervised, _ = _supervised(tmp_path, code, on_line=lines.append, final_codes=frozenset({0}))
    await supervised.run()
    assert lines == ["0", "1", "2"]
