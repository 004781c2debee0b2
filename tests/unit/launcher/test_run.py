"""`headrace run` before anything is started; the rest is the end-to-end tests' business."""

import json
import socket

import pytest

from services.common.errors import ConfigError
from services.launcher.ports import free_port
from services.launcher.run import run_command

_TOML = """
[run]
directory = "{folder}/runs"
[model]
path = "{folder}/nothing"
[data]
source = "{folder}/rows.jsonl"
"""


def _refusal(tmp_path, *flags):
    path = tmp_path / "task.toml"
    path.write_text(_TOML.format(folder=tmp_path))
    with pytest.raises(ConfigError) as caught:
        run_command(path, flags, dry_run=False, quiet=True)
    assert not list((tmp_path / "runs").glob("*"))
    return caught.value.message


def test_missing_data_leaves_no_run_directory(tmp_path):
    assert "rows.jsonl" in _refusal(tmp_path)


def test_an_unreachable_redis_is_found_first(tmp_path):
    assert "cannot be reached" in _refusal(tmp_path, f"--queue.redis_url=redis://127.0.0.1:{free_port()}")


def test_a_port_in_use_is_found_first(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert address in _refusal(tmp_path, f"--trainer.address={address}")


def test_a_finished_run_is_not_taken_up_for_more_steps_and_stays_as_it_is(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text(_TOML.format(folder=tmp_path))
    folder = tmp_path / "runs" / "done"
    folder.mkdir(parents=True)
    (folder / "run_id").write_text("done-1\n")
    (folder / "summary.json").write_text(json.dumps({"steps": 5, "total_steps": 5}))
    (folder / "ledger.json").write_text(json.dumps({"lost": 0, "trained_twice": 0}))
    flags = ("--run.name=done", "--run.resume=true", "--trainer.total_steps=9")
    with pytest.raises(ConfigError) as caught:
        run_command(path, flags, dry_run=False, quiet=True)
    assert caught.value.message == (
        "run done has finished its 5 steps and cannot take up more (trainer.total_steps is 9); "
        f"start a new run from its model with --model.path {folder / 'final'}"
    )
    assert not (folder / "config.toml").exists()
    assert (folder / "summary.json").exists()
