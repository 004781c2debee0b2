"""`headrace status` of runs that do not go on; a live one is seen by the end-to-end tests."""

import json
from pathlib import Path

import pytest

from services.common.config import RunConfig
from services.common.errors import UnavailableError
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
