"""Runs the real command in a process of its own, with a tiny model that all tests of a session share."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

EXAMPLES = Path(__file__).parents[2] / "examples"

_HEADRACE = (sys.executable, "-m", "services.launcher")
_CONFIG = """
[run]
directory = "{directory}"

[model]
build = "tiny_qwen3"
hidden_size = 32
num_layers = 1
max_context = 64

[model.warm_start]
max_steps = 0

[data]
source = "{data}"

[rollout]
replicas = 1
group_size = 4
max_new_tokens = 8

[engine]
max_slots = 32

[reward]
scorer = "numeric"

[queue]
lease_seconds = 3.0

[trainer]
total_steps = 6
groups_per_step = 4
learning_rate = 1e-3
checkpoint_every = 2
"""


def write_config(folder: Path, *, directory: Path, data: Path | None = None) -> Path:
    """Write a small configuration; `directory` is where run directories and the built model go."""
    path = folder / "small.toml"
    data = data or EXAMPLES / "data" / "arithmetic_train.jsonl"
    path.write_text(_CONFIG.format(directory=directory, data=data))
    return path


def start(*words: str) -> subprocess.Popen:
    """Start `headrace` with words; its output goes to pipes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*_HEADRACE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run(*words: str, timeout: float = 100.0) -> subprocess.CompletedProcess:
    """Run `headrace` with words to its end."""
    process = start(*words)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        raise AssertionError(f"headrace {' '.join(words)} took more than {timeout} s:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def processes(launcher_pid: int) -> dict[str, psutil.Process]:
    """The running children of a launcher by what they are: `queue`, `reward`, `trainer`, `rollouter`, `redis`."""
    found = {}
    for child in psutil.Process(launcher_pid).children():
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        for word in words[1:]:
            if word.startswith("services."):
                found[word.removeprefix("services.")] = child
        if words and words[0].endswith(("valkey-server", "redis-server")):
            found["redis"] = child
    return found


def wait_for(condition, *, seconds: float, what: str):
    """Wait until a condition returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def read_lines(path: Path) -> list[dict]:
    """Read a file of JSON lines; empty when it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
