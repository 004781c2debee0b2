"""The reward service as a process of its own: how it starts, how small it is, and that it leaves nothing behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.common.clients.reward import RewardClient
from services.common.rpc.channel import open_channel
from services.common.rpc.health import wait_healthy
from tests.unit.reward.builders import all_gone, request

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")

CONFIG = """
[model]
build = "tiny_qwen3"
[data]
source = "reasoning_gym:chain_sum"
[reward]
scorer = "reasoning_gym"
workers = 2
"""


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def started(folder, *flags):
    """Start `python -m services.reward` and end it, whatever happened."""
    path = folder / "run.toml"
    path.write_text(CONFIG)
    address = free_address()
    command = [sys.executable, "-m", "services.reward", "--config", str(path), "--reward.address", address, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process, address
    finally:
        process.kill()
        process.communicate(timeout=10)


def children(pid):
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(folder.name))
    return found


def resident_bytes(pid):
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024


def mapped_files(pid):
    return Path(f"/proc/{pid}/maps").read_text()


async def test_it_is_small_warm_and_leaves_nothing_behind(tmp_path):
    import reasoning_gym

    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    with started(tmp_path) as (process, address):
        await wait_healthy(address, 30.0)
        workers = children(process.pid)
        assert len(workers) == 2
        channel = open_channel(address)
        client = RewardClient(channel)
        began = time.perf_counter()
        score = await client.score(request(entry["answer"], answer=entry["answer"], metadata=entry), timeout_seconds=10)
        assert score.reward == 1.0
        assert score.scorer_version.startswith("reasoning-gym ")
        assert time.perf_counter() - began < 1.0
        for i in range(300):
            await client.score(request("x" * 10_000, trajectory=f"t{i}", metadata=entry), timeout_seconds=10)
        await channel.close()
        assert resident_bytes(process.pid) < 150 * 1024**2
        mapped = mapped_files(process.pid)
        assert "torch" not in mapped
        assert "numpy" not in mapped
        process.terminate()
        assert await asyncio.to_thread(process.wait, 15) == 0
        assert all_gone(workers)


async def test_killed_it_takes_its_workers_along(tmp_path):
    with started(tmp_path, "--reward.scorer", "numeric") as (process, address):
        await wait_healthy(address, 30.0)
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        assert all_gone(workers)


def test_a_wrong_scorer_ends_it_with_one_sentence(tmp_path):
    with started(tmp_path, "--reward.scorer", "numerik") as (process, _):
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 2
        assert "did you mean 'numeric'" in errors
        assert "Traceback" not in errors


def test_a_scorer_that_cannot_be_imported_ends_it_with_the_reason(tmp_path):
    with started(tmp_path, "--reward.scorer", "python:tests.no_such_module:f") as (process, _):
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 2
        assert "No module named 'tests.no_such_module'" in errors.splitlines()[-1]
