from pathlib import Path

import pytest

from services.common.errors import ConfigError
from services.trainer.dataset import RunData
from services.trainer.model_source import resolve_model
from tests.unit.trainer.fakes import make_config, make_rows

DATA = RunData(train=make_rows(4), validation=(), num_excluded=0)


def resolve(config):
    return resolve_model(config, DATA, progress=lambda _: None)


def test_a_model_without_a_warm_start_is_built_once_beside_the_run_directories(tmp_path):
    config = make_config(tmp_path, model={"warm_start": {"max_steps": 0}})

    folder = resolve(config)
    built = (folder / "config.json").stat().st_mtime_ns

    assert folder.parent == tmp_path / ".models"
    assert resolve(config) == folder
    assert (folder / "config.json").stat().st_mtime_ns == built
    other = make_config(tmp_path, model={"warm_start": {"max_steps": 0}}, run={"seed": 9})
    assert resolve(other) != folder
    assert sorted(path for path in (tmp_path / ".models").iterdir() if path.name.startswith(".")) == []


def test_a_warm_start_is_taken_from_its_section(tmp_path):
    warm_start = {"max_steps": 2, "batch_size": 4, "stop_at_pass_rate": 0.5}
    config = make_config(tmp_path, model={"warm_start": warm_start, "hidden_size": 16, "num_layers": 1})
    lines = []

    folder = resolve_model(config, DATA, progress=lines.append)

    assert (folder / "warm_start.json").is_file()
    assert lines
    assert resolve(config) == folder


def test_a_named_folder_is_checked_and_taken(tmp_path):
    built = resolve(make_config(tmp_path, model={"warm_start": {"max_steps": 0}}))

    assert resolve(make_config(tmp_path, model={"build": "", "path": str(built)})) == built
    with pytest.raises(ConfigError, match="is not a folder"):
        resolve(make_config(tmp_path, model={"build": "", "path": str(tmp_path / "none")}))


def test_a_width_that_the_heads_cannot_share_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hidden_size is 20; use a multiple of 8"):
        resolve(make_config(Path(tmp_path), model={"hidden_size": 20}))
