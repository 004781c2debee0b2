"""One task in ten takes ten times longer than the others, and `async.on_stale = "wait"` starves none of them."""

import json

import pytest

from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_SCRIPT = """
seconds_per_token = 0.02

[[rules]]
match = "slow"
replies = ["3", "7"]
num_tokens = [50, 50]

[[rules]]
replies = ["3", "7"]
num_tokens = [5, 5]
"""
_STEPS = 14


def test_slow_tasks_are_trained_on_in_their_first_attempt_when_training_waits(runs, tmp_path):
    script, data = tmp_path / "script.toml", tmp_path / "tasks.jsonl"
    script.write_text(_SCRIPT)
    rows = [{"prompt": f"{'slow' if row % 10 == 3 else 'fast'} {row} =", "answer": "3"} for row in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = system.write_config(tmp_path, directory=runs, data=data)
    done = system.run(
        "run",
        str(config),
        *("--run.name", "slow", "--async.on_stale=wait", f"--trainer.total_steps={_STEPS}"),
        *("--engine.kind=scripted", f"--engine.script={script}", "--engine.max_slots=16"),
        *("--model.max_context=128", "--rollout.max_new_tokens=64"),
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = system.read_lines(runs / "slow" / "metrics.jsonl")
    assert len(steps) == _STEPS
    assert max(step["staleness_max"] for step in steps) <= 2
    ledger = json.loads((runs / "slow" / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    train = ledger["train"]
    assert train["tasks"]["dropped"].get("stale", 0) == 0
    assert train["tasks"]["refilled"] == 0
    assert train["trajectories"]["released"].get("stale", 0) == 0
