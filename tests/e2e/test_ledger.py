"""A run whose account does not add up must not pass for a good one."""

import json

import pytest
import redis

from tests.e2e import system
from tests.redis_server import running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_a_ledger_that_was_tampered_with_ends_the_run_with_1_and_a_sentence(runs, tmp_path, started):
    config = system.write_config(tmp_path, directory=runs)
    flags = system.script_flags(tmp_path, seconds_per_token=0.02)
    folder = runs / "tampered"
    with running_server(tmp_path) as url:
        environment = {"HEADRACE_REDIS_URL": url}
        run = system.start("run", str(config), "--run.name", "tampered", *flags, environment=environment)
        started.append(run)
        ledger = system.wait_for(lambda: system.train_ledger(folder), seconds=120, what="a ledger")
        assert ledger.lost == 0
        with redis.Redis.from_url(url) as client:
            key = f"hr:{{{(folder / 'run_id').read_text().strip()}}}:train:ledger"
            assert client.hincrby(key, "fed", 3) >= 3
        out, err = run.communicate(timeout=120)
    assert run.returncode == 1, out + err
    assert "lost = 3" in out
    assert "does not balance" in err
    assert json.loads((folder / "ledger.json").read_text())["lost"] == 3

    status = system.run("status", str(folder), timeout=60)
    assert status.returncode == 1, status.stdout + status.stderr
    assert "lost = 3" in status.stdout
    assert "does not balance" in status.stderr
