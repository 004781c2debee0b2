import json

import pytest

from services.common.errors import ConfigError, FencedError
from services.trainer.versions import VersionFile


def test_numbers_grow_and_are_on_disk_when_they_are_given_out(tmp_path):
    path = tmp_path / "version.json"
    file = VersionFile(path)
    assert file.newest == -1
    file.claim(1)

    assert [file.assign(), file.assign()] == [0, 1]

    assert json.loads(path.read_text()) == {"version": 1, "epoch": 1}
    assert (VersionFile(path).newest, VersionFile(path).epoch) == (1, 1)


@pytest.mark.parametrize(("above", "expected"), [(-1, 4), (2, 4), (3, 4), (9, 10)])
def test_the_next_number_is_above_every_number_seen_anywhere(tmp_path, above, expected):
    (tmp_path / "version.json").write_text('{"version": 3, "epoch": 1}')

    assert VersionFile(tmp_path / "version.json").assign(above=above) == expected


def test_a_trainer_that_was_replaced_cannot_take_the_file_back(tmp_path):
    path = tmp_path / "version.json"
    frozen = VersionFile(path)
    frozen.claim(1)
    frozen.assign()
    VersionFile(path).claim(2)

    with pytest.raises(FencedError, match=r"epoch 1 was replaced: .*version\.json belongs to epoch 2"):
        frozen.assign()
    with pytest.raises(FencedError):
        frozen.claim(1)
    with pytest.raises(FencedError):
        frozen.check()
    assert json.loads(path.read_text()) == {"version": 0, "epoch": 2}


def test_the_owner_of_the_directory_goes_on_and_keeps_the_numbers(tmp_path):
    path = tmp_path / "version.json"
    file = VersionFile(path)
    assert file.is_missing
    file.claim(7)
    file.assign()
    assert not file.is_missing

    file.claim(8)
    file.check()

    assert VersionFile(path).assign() == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": "x", "epoch": 1}'])
def test_a_damaged_file_is_refused_and_not_taken_for_none(tmp_path, text):
    (tmp_path / "version.json").write_text(text)

    with pytest.raises(ConfigError, match="holds the newest policy version of the run"):
        VersionFile(tmp_path / "version.json")
