"""Child processes: output, exit, and that nothing stays behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil

from services.launcher.process import ChildProcess, Command, describe_exit


def _python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def test_every_line_arrives_with_its_stream_and_the_exit_status_is_returned():
    lines = []
    code = "import sys; print(sys.stdin.read()); print('bad', file=sys.stderr); sys.exit(7)"
    child = await ChildProcess.start(Command(argv=_python(code), stdin=b"secret"))
    assert await child.follow(lines.append) == 7
    assert {(line.text, line.is_error) for line in lines} == {("secret", False), ("bad", True)}


async def test_the_environment_is_passed_on():
    lines = []
    command = Command(argv=_python("import os; print(os.environ['HR_X'], os.getppid())"), environment={"HR_X": "5"})
    await (await ChildProcess.start(command)).follow(lines.append)
    assert lines[0].text == f"5 {os.getpid()}"


async def test_a_signal_shows_as_a_negative_status():
    child = await ChildProcess.start(Command(argv=_python("import time; time.sleep(60)")))
    child.kill()
    assert await child.follow(lambda _: None) == -signal.SIGKILL


async def test_what_a_dead_service_left_behind_is_killed():
    code = (
        "import os, subprocess, sys, signal\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    lines = []
    child = await ChildProcess.start(Command(argv=_python(code)))
    await child.follow(lines.append)
    assert _gone(int(lines[0].text))


async def test_cancelling_kills_the_process():
    child = await ChildProcess.start(Command(argv=_python("import time; time.sleep(60)")))
    task = asyncio.ensure_future(child.follow(lambda _: None))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert _gone(child.pid)


async def test_an_endless_line_is_cut_and_not_collected():
    lines = []
    child = await ChildProcess.start(Command(argv=_python("print('x' * 300_000)")))
    await child.follow(lines.append)
    assert sum(len(line.text) for line in lines) == 300_000
    assert max(len(line.text) for line in lines) < 200_000


def test_children_die_with_a_launcher_that_is_killed():
    code = (
        "import asyncio, sys\n"
        "from services.launcher.process import ChildProcess, Command\n"
        "async def main():\n"
        "    child = await ChildProcess.start(Command(argv=(sys.executable, '-c', 'import time; time.sleep(60)')))\n"
        "    print(child.pid, flush=True)\n"
        "    await child.follow(lambda _: None)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as launcher:
        pid = int(launcher.stdout.readline())
        time.sleep(0.3)
        launcher.kill()
    assert _gone(pid)


def _gone(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(timeout=5)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_an_exit_is_described_for_people():
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-9) == "killed by SIGKILL"
