"""Rollouters come and go while a run trains, started and stopped by hand as a user would."""

import json
import signal

import pytest

from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_STEPS = 45


def test_one_replica_becomes_four_and_one_again_while_the_run_trains(runs, tmp_path, started):
    config = system.write_config(tmp_path, directory=runs)
    flags = system.script_flags(tmp_path, seconds_per_token=0.06)
    steps = ("--trainer.total_steps", str(_STEPS), "--queue.lease_seconds", "8")
    run = system.start("run", str(config), "--run.name", "scaled", *flags, *steps)
    started.append(run)
    folder = runs / "scaled"
    system.wait_for(lambda: system.newest_step(folder) >= 1, seconds=120, what="the first step")

    by_command = [system.join(folder, name) for name in "ab"]
    words = ("services.rollouter", "--config", str(folder / "config.toml"), "--replica-id", "c")
    by_module = system.start_module(*words)
    started += [*by_command, by_module]

    for name in ("a", "b", "c"):
        system.wait_for(lambda name=name: system.done_by(folder, name) >= 4, seconds=40, what=f"work of {name}")
    assert set(system.replicas(folder)) == {"rollouter-0", "a", "b", "c"}

    for process in by_command:
        process.send_signal(signal.SIGTERM)
    for process in by_command:
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0, out
    assert {system.replicas(folder)[name].status.state for name in "ab"} == {"left"}
    ledger = system.train_ledger(folder)
    assert (ledger.trajectories.lapsed, ledger.lost) == (0, 0), "a replica that leaves gives back what it holds"

    by_module.kill()
    assert run.poll() is None, "the run was over before the last replica was killed"
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    metrics = system.read_lines(folder / "metrics.jsonl")
    assert [entry["step"] for entry in metrics] == list(range(1, _STEPS + 1))
    assert max(entry["staleness_max"] for entry in metrics) <= 2
    counted = system.contributors(folder)
    assert set(counted) == {"rollouter-0", "a", "b", "c"}
    assert min(counted.values()) >= 4, counted
