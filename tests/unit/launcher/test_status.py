"""`headrace status` of runs that do not go on; a live one is seen by the end-to-end tests."""

import json
from pathlib import Path

import pytest

from services.common.config import RunConfig
from services.common.errors import InternalError, UnavailableError
from services.launcher.ports import free_port
from services.launcher.resolve import place_run, with_addresses, write_config
from services.launcher.run_directory import open_run_directory
from services.launcher.status import status_command


def _ended_run(tmp_path):
    sections = {
        "model": {"path": "m"},
        "data": {"source": "rows.jsonl"},
        "run": {"directory": str(tmp_path), "name": "ended"},
    }
    config = RunConfig.model_validate(sections)
    directory = open_run_directory(config, Path("task.toml"))
    config = with_addresses(place_run(config, directory), {"queue.address": f"127.0.0.1:{free_port()}"})
    write_config(config, directory)
    directory.close()
    return directory.path


@pytest.mark.parametrize("watch", [False, True])
def test_a_finished_run_shows_its_report(tmp_path, capsys, watch):
    path = _ended_run(tmp_path)
    (path / "summary.json").write_text(json.dumps({"steps": 5, "total_steps": 5}))
    (path / "ledger.json").write_text(json.dumps({"lost": 0, "trained_twice": 0}))
    assert status_command(path, watch=watch) == 0
    assert "steps                5 of 5" in capsys.readouterr().out


def test_a_run_that_was_ended_early_says_how_to_go_on(tmp_path):
    with pytest.raises(UnavailableError, match=r"--run.resume true"):
        status_command(_ended_run(tmp_path), watch=False)


def test_a_crashed_run_shows_its_newest_step_and_its_account(tmp_path, capsys):
    path = _ended_run(tmp_path)
    step = {"step": 7, "version": 6, "reward_mean": 0.25, "pass_rate": 0.5, "staleness_mean": 1.0, "staleness_max": 2}
    (path / "metrics.jsonl").write_text(json.dumps(step) + "\n" + '{"step": 8, "ver')
    with pytest.raises(UnavailableError):
        status_command(path, watch=False)
    said = capsys.readouterr().out
    assert "step 7, version 6: reward 0.250, pass@1 50.0 %, staleness 1.0 (max 2)" in said
    assert "no ledger.json" in said
    (path / "ledger.json").write_text(json.dumps({"lost": 0, "trained_twice": 0}))
    with pytest.raises(UnavailableError):
        status_command(path, watch=False)
    assert "trained twice = 0" in capsys.readouterr().out


@pytest.mark.parametrize("account", [{"lost": 2, "trained_twice": 0}, {"lost": 0, "trained_twice": 1}, {}])
def test_an_account_that_does_not_add_up_is_an_error(tmp_path, account):
    path = _ended_run(tmp_path)
    (path / "summary.json").write_text(json.dumps({"steps": 5, "total_steps": 5}))
    (path / "ledger.json").write_text(json.dumps(account))
    with pytest.raises(InternalError, match="does not balance"):
        status_command(path, watch=False)
