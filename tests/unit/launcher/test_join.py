"""`headrace join` up to the moment in which it becomes the rollouter; the rest is an end-to-end test."""

import fcntl
import sys

import pytest

from services.common.errors import ConfigError
from services.launcher.join import join_command, rollouter_command

_TOML = '[model]\npath = "m"\n[data]\nsource = "d.jsonl"\n[engine]\nthreads = 3\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run_id").write_text("demo-1a2b3c\n")
    (tmp_path / "config.toml").write_text(_TOML)
    return tmp_path


def test_a_run_that_goes_on_is_joined_under_its_own_id(folder):
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        flags = ["--engine.device=cpu"]
        argv, environment = rollouter_command(folder, flags, replica_id="extra", environment={"PATH": "/bin"})
    config = str(folder / "config.toml")
    assert argv[:3] == [sys.executable, "-m", "services.rollouter"]
    assert argv[3:] == ["--config", config, "--replica-id", "extra", "--engine.device=cpu"]
    assert environment == {
        "PATH": "/bin",
        "HEADRACE_RUN_ID": "demo-1a2b3c",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
    }


@pytest.mark.parametrize(("has_finished", "sentence"), [(True, "the run has finished"), (False, "--run.resume true")])
def test_a_run_that_has_ended_cannot_be_joined(folder, has_finished, sentence):
    (folder / ".lock").touch()
    if has_finished:
        (folder / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match=sentence):
        join_command(folder, [], replica_id="")


def test_another_folder_cannot_be_joined(tmp_path):
    with pytest.raises(ConfigError, match="is no run directory"):
        join_command(tmp_path, [], replica_id="")
