"""Whatever is killed in the middle of a run, the run finishes, loses nothing and trains on nothing twice."""

import json

import pytest

from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_STEPS = 100


def test_every_process_can_be_killed_once(runs, tmp_path):
    config = system.write_config(tmp_path, directory=runs)
    flags = ("--run.name", "killed", "--rollout.replicas", "2", "--trainer.total_steps", str(_STEPS))
    process = system.start("run", str(config), *flags)
    folder = runs / "killed"
    metrics = folder / "metrics.jsonl"

    def newest_step() -> int:
        return max((entry["step"] for entry in _whole_lines(metrics)), default=0)

    killed = []
    system.wait_for(lambda: newest_step() >= 2, seconds=90, what="the second step")
    for name in ("reward", "rollouter", "queue", "redis", "trainer"):
        victim = system.wait_for(
            lambda name=name: system.processes(process.pid).get(name), seconds=30, what=f"a running {name}"
        )
        before = newest_step()
        victim.kill()
        killed.append(name)
        # Killed while the run goes on, and the run goes on afterwards.
        assert before < _STEPS, f"the run was over before {name} could be killed"
        system.wait_for(lambda before=before: newest_step() > before, seconds=60, what=f"a step after {name} died")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert killed == ["reward", "rollouter", "queue", "redis", "trainer"]
    assert out.count("killed by SIGKILL") == len(killed)
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    assert ledger["train"]["tasks"]["open"] == 0
    steps = {entry["step"]: entry for entry in _whole_lines(metrics)}
    assert sorted(steps) == list(range(1, _STEPS + 1))
    assert max(entry["staleness_max"] for entry in steps.values()) <= 2


def _whole_lines(path):
    """Lines of a file that is being written; the trainer may have been killed in the middle of one."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
