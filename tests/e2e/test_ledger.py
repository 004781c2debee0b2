"""A run whose account does not add up must not pass for a good one."""

import json

import pytest
import redis

from services.common.run_folder import read_run_id
from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_SENTENCE = "the ledger does not balance (lost 1, trained twice 0)"


def test_a_ledger_that_was_tampered_with_ends_the_run_with_a_sentence(runs, tmp_path, started):
    config = system.write_config(tmp_path, directory=runs)
    flags = system.script_flags(tmp_path, seconds_per_token=0.04)
    run = system.start("run", str(config), "--run.name", "tampered", *flags)
    started.append(run)
    folder = runs / "tampered"
    system.wait_for(lambda: system.newest_step(folder) >= 1, seconds=120, what="the first step")
    assert system.train_ledger(folder).lost == 0
    with redis.Redis.from_url(system.redis_url(run.pid)) as client:
        assert client.hincrby(f"hr:{{{read_run_id(folder)}}}:train:ledger", "fed", 1) > 1

    out, err = run.communicate(timeout=120)
    assert run.returncode == 1, out + err
    assert "lost = 1" in out
    assert _SENTENCE in err
    assert json.loads((folder / "ledger.json").read_text())["lost"] == 1

    status = system.run("status", str(folder), timeout=30)
    assert status.returncode == 1, status.stdout + status.stderr
    assert "+ 1 lost" in status.stdout
    assert _SENTENCE in status.stderr
