"""The whole system from one command: it trains, accounts for everything, and leaves what it promises."""

import json
import os
import signal
import tomllib
from collections import defaultdict

import pytest

from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# Many enough that the run still goes on when its state has been asked for.
_STEPS = 200
_TREE = {"trajectory", "task.wait", "generate", "reward.score", "queue.put", "queue.wait", "train.consume"}


def _traces(path):
    traces = defaultdict(list)
    for batch in system.read_lines(path):
        for resource in batch["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    traces[span["traceId"]].append(span)
    return traces


def test_a_run_trains_and_leaves_model_ledger_and_whole_traces(runs, tmp_path):
    config = system.write_config(tmp_path, directory=runs)
    flags = ("--run.name", "whole", "--rollout.replicas", "2", "--validation.size", "8")
    done = system.run("run", str(config), *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "[Step 6/6] 16 rollouts" in done.stdout
    assert "lost = 0" in done.stdout
    assert "trained twice = 0" in done.stdout

    folder = runs / "whole"
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    assert ledger["train"]["tasks"]["consumed"] == 24
    steps = system.read_lines(folder / "metrics.jsonl")
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4, 5, 6]
    assert max(entry["staleness_max"] for entry in steps) <= 2
    written = tomllib.loads((folder / "config.toml").read_text())
    assert "redis_url" not in written["queue"]

    trees = defaultdict(int)
    for spans in _traces(folder / "traces.jsonl").values():
        names = {span["name"] for span in spans}
        if "train.consume" in names:
            trees["whole" if names == _TREE else "broken"] += 1
            root = next(span["spanId"] for span in spans if span["name"] == "trajectory")
            assert {span.get("parentSpanId", "") for span in spans} <= {root, ""}
    assert trees == {"whole": 96}

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "final", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "final", local_files_only=True)
    assert model.config.vocab_size >= len(tokenizer)


def test_ctrl_c_drains_and_the_run_can_be_resumed_to_its_end(runs, tmp_path):
    config = system.write_config(tmp_path, directory=runs)
    words = ("run", str(config), "--run.name", "resumed", "--trainer.total_steps", str(_STEPS))
    process = system.start(*words)
    folder = runs / "resumed"
    system.wait_for(lambda: len(system.read_lines(folder / "metrics.jsonl")) >= 3, seconds=60, what="the third step")

    def shows_the_replica():
        status = system.run("status", str(folder), timeout=30)
        return status.stdout if "rollouter-0" in status.stdout and status.returncode == 0 else ""

    # A replica is known from its first heartbeat on, seconds after the first step.
    shown = system.wait_for(shows_the_replica, seconds=30, what="a status with the replica")
    assert process.poll() is None, "the run was over before its state was asked for"
    accounts = {tuple(words[:2]): words[2:] for words in map(str.split, shown.splitlines()) if len(words) > 2}
    for account in ("tasks", "trajectories"):
        begun, ended_well = map(int, accounts["train", account][:2])
        # Both tables as they stand: more was begun than was consumed or put, and nothing is lost.
        assert begun >= ended_well > 0
        assert accounts["train", account][-1] == "0"
    assert "lost = 0, trained twice = 0" in shown
    children = system.processes(process.pid)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "--run.resume true" in out
    assert not [child for child in children.values() if child.is_running()]
    assert set(children) == {"redis", "queue", "reward", "trainer", "rollouter"}

    done = system.run(*words, "--run.resume", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    last = {entry["step"]: entry for entry in system.read_lines(folder / "metrics.jsonl")}
    assert sorted(last) == list(range(1, _STEPS + 1))


def test_verify_checks_everything_and_says_what_fails(runs, tmp_path):
    config = system.write_config(tmp_path, directory=runs)
    done = system.run("verify", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    for check in ("configuration", "redis", "data", "scorer settings", "model", "scorer", "generation"):
        assert f"ok  {check}: " in done.stdout
    assert not [path for path in runs.iterdir() if path.name.startswith("verify")]


def test_a_dry_run_prints_the_resolved_configuration_and_starts_nothing(runs, tmp_path):
    config = system.write_config(tmp_path, directory=runs)
    done = system.run("run", str(config), "--dry-run", "--async.mode", "sync", "--run.name", "dry", timeout=30)
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["async"]["max_staleness"] == 0
    assert not (runs / "dry").exists()
