"""How soon a run samples its first token, and what the light services weigh while it goes on.

The real command runs with a tiny model that was built before, as in every run but the first. Its clock starts when the
process is started; the first token lies between the first beginning and the first end of a `generate` span, and the
end, which comes at most 8 tokens later, is what counts. Memory is the resident set of the main processes of queue and
reward (scorers run in workers of their own), the largest seen from the first step on to the end of the run.
Of several starts the median counts; of memory the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from services.common.telemetry import names
from services.common.telemetry.file_exporter import read_spans
from tests.e2e import system

SERVICES = ("queue", "reward")
LONGEST_SECONDS = 180.0
LOOK_SECONDS = 0.2
TARGETS = {"first_token_seconds": 20.0, "queue_megabytes": 150.0, "reward_megabytes": 150.0}


def build_model(config: Path) -> None:
    """Build the model once, so that the measured runs find it."""
    command = [sys.executable, "-m", "services.trainer.prepare", "--config", str(config)]
    subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_SECONDS)


def measure_run(config: Path, directory: Path, *, name: str, num_steps: int) -> dict[str, float]:
    """Start one run, watch its memory until it ends, and read from its spans when it sampled first.

    Raises:
        RuntimeError: the run failed.
    """
    folder = directory / name
    began = time.time()
    process = system.start("run", str(config), "--run.name", name, "--trainer.total_steps", str(num_steps), "--quiet")
    try:
        megabytes = watch_memory(process, first_step=folder / "metrics.jsonl")
        out, err = process.communicate(timeout=LONGEST_SECONDS)
    finally:
        process.terminate()
        process.wait(timeout=LONGEST_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"the run ended with exit status {process.returncode}:\n{out}\n{err}")
    calls = [span for _, span in read_spans(folder / "traces.jsonl") if span["name"] == names.SPAN_GENERATE]
    figures = {
        "first_call_seconds": min(int(span["startTimeUnixNano"]) for span in calls) / 1e9 - began,
        "first_token_seconds": min(int(span["endTimeUnixNano"]) for span in calls) / 1e9 - began,
    }
    return figures | {f"{service}_megabytes": megabytes[service] for service in SERVICES}


def watch_memory(process: subprocess.Popen[str], *, first_step: Path) -> dict[str, float]:
    """Look at the services from the first step on until the launcher ends; returns the largest resident sets."""
    largest = dict.fromkeys(SERVICES, 0.0)
    deadline = time.monotonic() + LONGEST_SECONDS
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not end within {LONGEST_SECONDS} s")
        time.sleep(LOOK_SECONDS)
        if not first_step.exists():
            continue
        try:
            children = system.processes(process.pid)
            for service in SERVICES:
                if service in children:
                    resident = children[service].memory_info().rss / 1e6
                    largest[service] = max(largest[service], resident)
        except psutil.NoSuchProcess:
            continue
    return largest


def main() -> None:
    """Run the bench and print its one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of 20 steps instead of three of 60")
    arguments = parser.parse_args()
    num_runs, num_steps = (1, 20) if arguments.quick else (3, 60)
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        config = system.write_config(directory, directory=directory / "runs")
        build_model(config)
        runs = []
        for index in range(num_runs):
            runs.append(measure_run(config, directory / "runs", name=f"start-{index}", num_steps=num_steps))
            print(f"start {index + 1} of {num_runs}: {json.dumps(rounded(runs[-1]))}", flush=True)
    seconds = ("first_call_seconds", "first_token_seconds")
    figures = {name: statistics.median(run[name] for run in runs) for name in seconds}
    figures |= {name: max(run[name] for run in runs) for name in TARGETS if name not in seconds}
    met = all(0 < figures[name] < most for name, most in TARGETS.items())
    print(json.dumps({"bench": "startup", "figures": rounded(figures), "targets": TARGETS, "met": met}))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """Figures as people read them."""
    return {name: round(value, 1) for name, value in figures.items()}


if __name__ == "__main__":
    main()
