"""Run directories are made once, and taken up again only when asked."""

from pathlib import Path

import pytest

from services.common.config import RunConfig
from services.common.errors import ConfigError
from services.launcher.run_directory import newest_step, open_run_directory, read_run_id


def _config(tmp_path, **run):
    sections = {"model": {"path": "m"}, "data": {"source": "d.jsonl"}, "run": {"directory": str(tmp_path), **run}}
    return RunConfig.model_validate(sections)


def _open(config, config_path="my task.toml"):
    return open_run_directory(config, Path(config_path))


def test_a_named_run_gets_its_folder_and_an_id(tmp_path):
    directory = _open(_config(tmp_path, name="first"))
    assert directory.path == tmp_path / "first"
    assert directory.run_id.startswith("first-")
    assert read_run_id(directory.path) == directory.run_id
    assert directory.logs.is_dir()
    assert directory.redis.stat().st_mode & 0o077 == 0
    directory.close()


def test_runs_without_a_name_are_numbered_after_the_file(tmp_path):
    names = []
    for _ in range(3):
        directory = _open(_config(tmp_path))
        names.append(directory.name)
        directory.close()
    assert names == ["my-task-1", "my-task-2", "my-task-3"]
    directory = _open(_config(tmp_path, resume=True))
    assert directory.name == "my-task-3"
    directory.close()


def test_an_existing_run_is_refused_with_what_to_do(tmp_path):
    _open(_config(tmp_path, name="first")).close()
    with pytest.raises(ConfigError, match=r"exists; go on with it by --run.resume true"):
        _open(_config(tmp_path, name="first"))


def test_a_resumed_run_keeps_its_id_and_is_never_discarded(tmp_path):
    made = _open(_config(tmp_path, name="first"))
    made.close()
    resumed = _open(_config(tmp_path, name="first", resume=True))
    assert resumed.run_id == made.run_id
    resumed.discard()
    assert resumed.path.is_dir()


def test_a_new_run_can_be_discarded_without_a_trace(tmp_path):
    directory = _open(_config(tmp_path / "runs", name="first"))
    directory.discard()
    assert not directory.path.exists()


@pytest.mark.parametrize("run", [{"name": "nothing", "resume": True}, {"resume": True}])
def test_there_must_be_something_to_resume(tmp_path, run):
    with pytest.raises(ConfigError, match=r"run.resume is set"):
        _open(_config(tmp_path, **run))


def test_a_run_that_is_going_on_is_left_alone(tmp_path):
    directory = _open(_config(tmp_path, name="first"))
    with pytest.raises(ConfigError, match="in use by another"):
        _open(_config(tmp_path, name="first", resume=True))
    directory.close()


def test_another_folder_is_no_run_directory(tmp_path):
    with pytest.raises(ConfigError, match="is no run directory"):
        read_run_id(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        _open(_config(tmp_path / "file", name="first"))


def test_the_newest_step_only_grows_over_crashes_and_cut_lines(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert newest_step(tmp_path) == 0
    metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step"')
    assert newest_step(tmp_path) == 3
    metrics.write_text('{"step": 1}\n{"step": 2}\n{"st\n{"step": 1}\n')
    assert newest_step(tmp_path) == 2


def test_the_newest_step_is_found_at_the_end_of_a_long_file(tmp_path):
    lines = "".join(f'{{"step": {step}, "note": "{"x" * 100}"}}\n' for step in range(1, 2001))
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert newest_step(tmp_path) == 2000
