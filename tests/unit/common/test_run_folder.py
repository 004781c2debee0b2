import fcntl

import pytest

from services.common.config import RunConfig
from services.common.run_folder import find_run_id, folder_of, is_abandoned, is_finished


@pytest.fixture
def run(tmp_path):
    sections = {
        "run": {"name": "demo", "directory": str(tmp_path)},
        "model": {"path": "m"},
        "data": {"source": "d.jsonl"},
    }
    (tmp_path / "demo").mkdir()
    return RunConfig.model_validate(sections)


def test_the_environment_names_the_run_before_its_folder_and_its_name(run):
    assert find_run_id(run, {}) == "demo"
    (folder_of(run) / "run_id").write_text("demo-1a2b3c\n")
    assert find_run_id(run, {}) == "demo-1a2b3c"
    assert find_run_id(run, {"HEADRACE_RUN_ID": "demo-ffffff"}) == "demo-ffffff"


def test_a_folder_is_abandoned_once_its_launcher_is_gone(run):
    folder = folder_of(run)
    assert not is_abandoned(folder), "no launcher ever held it"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not is_abandoned(folder)
    assert is_abandoned(folder)


def test_a_run_has_finished_when_its_summary_is_there(run):
    assert not is_finished(folder_of(run))
    (folder_of(run) / "summary.json").write_text("{}")
    assert is_finished(folder_of(run))
