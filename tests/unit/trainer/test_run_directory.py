import errno
import json
import os

import pytest

from services.common.errors import FencedError, StorageError
from services.trainer.run_directory import RunDirectory, read_lines, write_durably
from tests.unit.trainer.fakes import make_config


def test_files_lie_in_the_folder_that_the_configuration_names(tmp_path):
    run = RunDirectory.of(make_config(tmp_path))

    assert run.root == tmp_path / "demo"
    assert run.root.is_dir()
    assert {run.checkpoints.name, run.final.name, run.version_file.name} == {"checkpoints", "final", "version.json"}


def test_the_last_line_of_a_step_in_its_largest_epoch_counts(tmp_path):
    run = RunDirectory(tmp_path)
    for step, epoch, loss in ((1, 1, 0.5), (2, 1, 0.4), (2, 2, 0.35), (2, 2, 0.3), (2, 1, 0.9), (3, 2, 0.2)):
        run.append_metrics({"step": step, "epoch": epoch, "loss": loss})

    assert [entry["loss"] for entry in run.steps()] == [0.5, 0.3, 0.2]


def test_half_a_line_is_left_out_and_nothing_is_glued_to_it(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_validation({"step": 0, "epoch": 1})
    with (tmp_path / "validation.jsonl").open("a") as file:
        file.write('{"step": 1, "pa')

    run.append_validation({"step": 2, "epoch": 1})

    assert run.validations() == [{"step": 0, "epoch": 1}, {"step": 2, "epoch": 1}]


def test_a_line_goes_after_the_end_of_an_empty_file(tmp_path):
    (tmp_path / "samples.jsonl").touch()

    RunDirectory(tmp_path).append_sample({"step": 1})

    assert read_lines(tmp_path / "samples.jsonl") == [{"step": 1}]


def test_single_files_are_replaced_as_a_whole(tmp_path):
    run = RunDirectory(tmp_path)
    run.write_ledger({"lost": 0})
    run.write_summary({"steps": 3})
    write_durably(tmp_path / "ledger.json", '{"lost": 1}')

    assert json.loads((tmp_path / "ledger.json").read_text()) == {"lost": 1}
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.json", "summary.json"]


def test_the_final_model_is_replaced_as_a_whole_and_only_by_the_owner(tmp_path):
    run = RunDirectory(tmp_path)

    def export(text):
        return lambda folder: (folder / "model").write_text(text)

    def replaced():
        raise FencedError("replaced")

    run.replace_final(export("first"), check=lambda: None)
    with pytest.raises(FencedError):
        run.replace_final(export("second"), check=replaced)

    assert (run.final / "model").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final"]


def test_a_full_disk_leaves_the_final_model_and_says_what_to_do(tmp_path):
    run = RunDirectory(tmp_path)

    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError, match=r"No space left on device.*make room"):
        run.replace_final(full, check=lambda: None)


def test_a_measurement_of_a_trainer_that_was_replaced_does_not_count(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_validation({"step": 6, "epoch": 2, "pass_rate": 0.5})
    run.append_validation({"step": 6, "epoch": 1, "pass_rate": 0.1})
    run.append_validation({"step": 0, "epoch": 1, "pass_rate": 0.2})

    assert [(entry["step"], entry["pass_rate"]) for entry in run.validations()] == [(0, 0.2), (6, 0.5)]
