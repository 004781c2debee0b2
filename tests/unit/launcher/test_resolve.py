"""What the services read is resolved: absolute paths, chosen addresses, no secret."""

import re
from pathlib import Path

import pytest

from services.common.config import RunConfig, load_config
from services.common.errors import ConfigError
from services.launcher.resolve import (
    place_run,
    redis_url,
    resolve_paths,
    with_addresses,
    with_model,
    write_config,
)
from services.launcher.run_directory import open_run_directory
from services.trainer.dataset import load_data


def _config(**sections):
    return RunConfig.model_validate({"model": {"path": "m"}, "data": {"source": "rows.jsonl"}, **sections})


def test_paths_that_exist_beside_the_config_become_absolute(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "m").mkdir()
    config = resolve_paths(_config(), tmp_path / "run.toml")
    assert config.data.source == str(tmp_path / "rows.jsonl")
    assert config.model.path == str(tmp_path / "m")


def test_a_missing_data_file_is_looked_for_beside_the_config_that_was_given(tmp_path):
    config = resolve_paths(_config(), tmp_path / "run.toml")
    assert config.data.source == str(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match=re.escape(f"data file 'rows.jsonl' does not exist in {tmp_path}")):
        load_data(config, folder=tmp_path / "runs" / "run-1")


def test_what_does_not_exist_and_what_is_generated_stays_as_it_was_written(tmp_path):
    config = resolve_paths(_config(data={"source": "reasoning_gym:chain_sum"}), tmp_path / "run.toml")
    assert config.data.source == "reasoning_gym:chain_sum"
    assert config.model.path == "m"
    assert config.validation.source == ""


def test_the_written_file_has_everything_but_the_secret(tmp_path):
    config = _config(run={"directory": str(tmp_path)}, queue={"redis_url": "redis://:hunter2@h:1"})
    directory = open_run_directory(config, Path("task.toml"))
    config = with_addresses(place_run(config, directory), {"queue.address": "127.0.0.1:7001"})
    config = with_model(config, "/models/tiny")
    write_config(config, directory)
    directory.close()
    assert "hunter2" not in directory.config_file.read_text()
    written = load_config(directory.config_file)
    assert written.run.name == "task-1"
    assert written.queue.address == "127.0.0.1:7001"
    assert (written.model.path, written.model.build) == ("/models/tiny", "")
    assert Path(written.run.directory) / written.run.name == directory.path


@pytest.mark.parametrize(
    ("configured", "environment", "used"),
    [("redis://a", "redis://b", "redis://a"), ("", "redis://b", "redis://b"), ("", "", "")],
)
def test_the_configured_redis_wins_over_the_environment(monkeypatch, configured, environment, used):
    monkeypatch.setenv("HEADRACE_REDIS_URL", environment)
    assert redis_url(_config(queue={"redis_url": configured})) == used
