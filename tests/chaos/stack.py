"""The whole system under test: `headrace run` in a process of its own, its children by role, and Redis' files.

Knows how to hurt; what and when is the plan's business. Everything that the run starts carries a mark in its
environment, by which what is left behind is found, whoever its parent is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from redis import Redis

if TYPE_CHECKING:
    from tests.chaos.plan import Plan

ROOT = Path(__file__).parents[2]

_MARK = "HEADRACE_CHAOS_MARK"
_URL_VARIABLE = "HEADRACE_REDIS_URL"
_TAIL_BYTES = 65536
_STOP_SECONDS = 40.0
_FOLLOW_SECONDS = 10.0
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
group_size = 4
max_new_tokens = 8

[engine]
max_slots = 32

[reward]
scorer = "python:tests.chaos.scorers:paced"

[trainer]
learning_rate = 1e-3
stall_seconds = 100.0
"""


class Stack:
    """One run of the whole system.

    Example:
        stack = Stack(folder, plan)
        stack.start()
        stack.role("queue").kill()
        stack.close()
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Prepare; nothing is started.

        Args:
            folder: gets `runs/`, the configuration and the command's output; the tiny model is built in it once.
            plan: names the run and its settings.
        """
        self._mark = uuid.uuid4().hex
        self._plan = plan
        self._process: psutil.Popen | None = None
        self._rivals: list[psutil.Popen] = []
        self._redis_url = ""
        self.folder = folder
        self.name = f"seed-{plan.seed}"
        self.run_directory = folder / "runs" / self.name
        self.output = folder / f"{self.name}.out"
        self.snapshot = folder / f"{self.name}.snapshot"

    def start(self) -> None:
        """Start the command, in place of an earlier run of the same name."""
        shutil.rmtree(self.run_directory, ignore_errors=True)
        shutil.rmtree(self.snapshot, ignore_errors=True)
        self.output.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / f"{self.name}.toml"
        data = ROOT / "examples" / "data" / "arithmetic_train.jsonl"
        config.write_text(_CONFIG.format(directory=self.run_directory.parent, data=data))
        self._launch(config)

    def _launch(self, config: Path, *, resume: bool = False) -> None:
        """Start the command itself."""
        settings = {**self._plan.settings, "run.name": self.name, "run.resume": resume}
        flags = [f"--{key}={json.dumps(value)}" for key, value in settings.items()]
        self._process = self._popen(["services.launcher", "run", str(config), *flags], self.output)

    def reboot(self) -> list[str]:
        """Kill the launcher, see everything end with it, and resume the run.

        Returns:
            Command lines of what did not end by itself; it is killed.
        """
        assert self._process is not None, "start comes first"
        self._process.kill()
        self._process.wait(timeout=_STOP_SECONDS)
        deadline = time.monotonic() + _FOLLOW_SECONDS
        while self._marked() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = self._kill_marked()
        self._redis_url = ""
        self._launch(self.folder / f"{self.name}.toml", resume=self.run_directory.exists())
        return left

    def _popen(self, words: list[str], output: Path) -> psutil.Popen:
        """Start a module of ours, marked."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", _MARK: self._mark}
        with output.open("a") as file:
            return psutil.Popen(
                [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def is_running(self) -> bool:
        """Whether the command has not ended."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the command; `None` while it runs."""
        assert self._process is not None, "start comes first"
        code: int | None = self._process.poll()
        return code

    @property
    def step(self) -> int:
        """Largest step reported so far."""
        try:
            with (self.run_directory / "metrics.jsonl").open("rb") as file:
                file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
                lines = file.read().splitlines()
        except OSError:
            return 0
        newest = 0
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                newest = max(newest, json.loads(line)["step"])
        return newest

    def roles(self) -> dict[str, psutil.Process]:
        """The launcher's children by role, and the reward service's worker as `scorer`."""
        assert self._process is not None, "start comes first"
        found: dict[str, psutil.Process] = {}
        with suppress(psutil.Error):
            for child in self._process.children():
                with suppress(psutil.Error):
                    role = _role(child.cmdline())
                    if role and child.status() != psutil.STATUS_ZOMBIE:
                        found[role] = child
        if "reward" in found:
            with suppress(psutil.Error, IndexError):
                found["scorer"] = found["reward"].children()[-1]
        return found

    def role(self, name: str, *, seconds: float = 30.0) -> psutil.Process | None:
        """The process of a role; waits for one that is just being started, within bounds."""
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            found = self.roles().get(name)
            if found is not None:
                return found
            time.sleep(0.05)
        return None

    def redis_url(self) -> str:
        """Address of the run's Redis, taken from the queue's environment; empty when no queue runs."""
        with suppress(psutil.Error, KeyError):
            if not self._redis_url and "queue" in (roles := self.roles()):
                self._redis_url = roles["queue"].environ()[_URL_VARIABLE]
        return self._redis_url

    def flush_redis(self) -> bool:
        """Have the running Redis forget everything; returns whether it did."""
        with suppress(Exception), Redis.from_url(self.redis_url(), socket_timeout=3.0) as client:
            return bool(client.flushall())
        return False

    def take_snapshot(self, redis: psutil.Process) -> bool:
        """Copy what a Redis that died now would find again; returns whether there was anything."""
        redis.suspend()
        try:
            files = self._redis_files()
            if files is None:
                return False
            shutil.rmtree(self.snapshot, ignore_errors=True)
            shutil.copytree(files, self.snapshot)
            return True
        finally:
            redis.resume()

    def replace_redis_files(self, redis: psutil.Process, *, snapshot: Path | None) -> None:
        """Kill Redis, which finds the snapshot's files, or none, when it is started again."""
        redis.suspend()
        files = self._redis_files()
        if files is not None:
            shutil.rmtree(files)
        if snapshot is not None and snapshot.exists():
            shutil.copytree(snapshot, self.run_directory / "redis" / "appendonlydir")
        redis.kill()

    def tear_redis_log(self, redis: psutil.Process, *, num_bytes: int) -> None:
        """Kill Redis, and cut the end off its log."""
        redis.suspend()
        logs = sorted((self._redis_files() or self.folder).glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
        if logs:
            os.truncate(logs[-1], max(0, logs[-1].stat().st_size - num_bytes))
        redis.kill()

    def _redis_files(self) -> Path | None:
        folder = self.run_directory / "redis" / "appendonlydir"
        return folder if folder.is_dir() else None

    def start_rival(self) -> psutil.Popen:
        """Start a second trainer on the same run, with a port of its own."""
        words = ["services.trainer", "--config", str(self.run_directory / "config.toml")]
        flags = ["--run.resume=true", "--trainer.address=127.0.0.1:0"]
        rival = self._popen([*words, *flags], self.folder / f"{self.name}.rival-{len(self._rivals)}.out")
        self._rivals.append(rival)
        return rival

    def epoch_on_disk(self) -> int:
        """Epoch of the trainer that assigned the newest version; 0 before the first."""
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self.run_directory / "version.json").read_text())["epoch"])
        return 0

    def close(self) -> list[str]:
        """End what still runs; returns the command lines of what outlived a command that had ended by itself."""
        for rival in self._rivals:
            with suppress(psutil.Error):
                rival.kill()
            rival.wait(timeout=_STOP_SECONDS)
        if self.is_running:
            self._stop_command()
        time.sleep(0.5)
        return self._kill_marked()

    def _kill_marked(self) -> list[str]:
        """Kill whatever carries the mark; returns the command lines."""
        left = []
        for process in self._marked():
            with suppress(psutil.Error):
                left.append(" ".join(process.cmdline()))
                process.kill()
        return left

    def _stop_command(self) -> None:
        """Ask the command to end, and kill it when it does not."""
        assert self._process is not None, "start comes first"
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except psutil.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_STOP_SECONDS)

    def _marked(self) -> list[psutil.Process]:
        """Every living process that carries this run's mark and is no rival, which the launcher knows nothing of."""
        found = []
        rivals = {rival.pid for rival in self._rivals}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid in rivals or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found


def _role(words: list[str]) -> str:
    """What a child of the launcher is, by its command line; empty for anything else."""
    if "--replica-id" in words:
        return words[words.index("--replica-id") + 1]
    for word in words[1:]:
        if word.startswith("services."):
            return word.removeprefix("services.")
    program = words[0].split()[0] if words and words[0].strip() else ""
    return "redis" if program.endswith(("valkey-server", "redis-server")) else ""
