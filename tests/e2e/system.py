"""Runs the real command in a process of its own, with a tiny model that all tests of a session share."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from services.common.clients.queue import QueueClient
from services.common.config import load_config
from services.common.errors import HeadraceError
from services.common.rpc.channel import open_channel
from services.common.run_folder import read_run_id
from services.common.telemetry.names import REPLICA_ID
from services.common.types import Ledger, Partition, ReplicaReport

EXAMPLES = Path(__file__).parents[2] / "examples"

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


def script_flags(folder: Path, *, seconds_per_token: float, max_slots: int = 4) -> tuple[str, ...]:
    """Flags that let rollouters play a script: they start in a moment and take exactly as long as they are told."""
    path = folder / "script.toml"
    path.write_text(f'seconds_per_token = {seconds_per_token}\ndefault_replies = ["3", "7", "12"]\n')
    return ("--engine.kind=scripted", f"--engine.script={path}", f"--engine.max_slots={max_slots}")


def start(*words: str, environment: dict[str, str] | None = None) -> subprocess.Popen:
    """Start `headrace` with words; its output goes to pipes."""
    return start_module("services.launcher", *words, environment=environment)


def start_module(
    *words: str, environment: dict[str, str] | None = None, output: Path | None = None
) -> subprocess.Popen:
    """Start `python -m` with words; its output goes to a file, or to pipes when none is named."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    command = [sys.executable, "-m", *words]
    if output is not None:
        with output.open("w") as file:
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=variables)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def join(folder: Path, name: str, *flags: str) -> subprocess.Popen:
    """Add a rollouter to a run, as a user does."""
    return start("join", str(folder), "--replica-id", name, *flags)


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


def redis_url(launcher_pid: int) -> str:
    """Address of the Redis that a launcher started, taken from its queue's environment."""
    return processes(launcher_pid)["queue"].environ()["HEADRACE_REDIS_URL"]


def wait_for(condition, *, seconds: float, what: str):
    """Wait until a condition returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def ask(folder: Path, what: str):
    """Ask the queue of a run that goes on, `get_stats` or `get_ledger`; None when it gives no answer."""

    async def asked():
        channel = open_channel(load_config(folder / "config.toml").queue.address)
        try:
            return await getattr(QueueClient(channel, read_run_id(folder)), what)()
        except HeadraceError:
            return None
        finally:
            await channel.close(None)

    return asyncio.run(asked()) if (folder / "config.toml").exists() else None


def replicas(folder: Path) -> dict[str, ReplicaReport]:
    """What the rollouters of a run said last, by the name that they were started under; the newest of each name."""
    stats = ask(folder, "get_stats")
    reports = [report for report in stats.replicas if report.status.service == "rollouter"] if stats else []
    oldest_first = sorted(reports, key=lambda report: -report.age_seconds)
    return {report.status.replica_id.rpartition("-")[0]: report for report in oldest_first}


def done_by(folder: Path, name: str) -> float:
    """Trajectories that the queue took from a rollouter; 0 before it was heard of."""
    report = replicas(folder).get(name)
    return report.status.metrics["num_trajectories"] if report else 0.0


def train_ledger(folder: Path) -> Ledger | None:
    """The training account of a run that goes on; None when the queue gives no answer."""
    ledgers = ask(folder, "get_ledger")
    return next((ledger for ledger in ledgers if ledger.partition is Partition.TRAIN), None) if ledgers else None


def newest_step(folder: Path) -> int:
    """Largest step in `metrics.jsonl`; 0 before the first."""
    return max((entry["step"] for entry in read_lines(folder / "metrics.jsonl")), default=0)


def contributors(folder: Path) -> Counter[str]:
    """Trajectories that were trained on by the name of the replica that made them, from the traces."""
    consumed, makers = set(), {}
    for batch in read_lines(folder / "traces.jsonl"):
        for resource in batch["resourceSpans"]:
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                if span["name"] == "train.consume":
                    consumed.add(span["traceId"])
                elif span["name"] == "trajectory":
                    values = {entry["key"]: entry["value"] for entry in span["attributes"]}
                    makers[span["traceId"]] = values[REPLICA_ID]["stringValue"].rpartition("-")[0]
    return Counter(makers[trace_id] for trace_id in consumed if trace_id in makers)


def read_lines(path: Path) -> list[dict]:
    """Read a file of JSON lines, but not the last one while it is being written; empty when there is no file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
