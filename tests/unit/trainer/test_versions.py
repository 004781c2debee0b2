import json

import pytest

from services.common.errors import ConfigError
from services.trainer.versions import VersionFile


def test_numbers_grow_and_are_on_disk_when_they_are_given_out(tmp_path):
    path = tmp_path / "version.json"
    file = VersionFile(path)
    assert file.newest == -1

    assert [file.assign(epoch=1), file.assign(epoch=1)] == [0, 1]

    assert json.loads(path.read_text()) == {"version": 1, "epoch": 1}
    assert (VersionFile(path).newest, VersionFile(path).epoch) == (1, 1)


@pytest.mark.parametrize(("above", "expected"), [(-1, 4), (2, 4), (3, 4), (9, 10)])
def test_the_next_number_is_above_every_number_seen_anywhere(tmp_path, above, expected):
    (tmp_path / "version.json").write_text('{"version": 3, "epoch": 1}')

    assert VersionFile(tmp_path / "version.json").assign(epoch=2, above=above) == expected


def test_a_trainer_that_was_replaced_cannot_take_the_file_back(tmp_path):
    path = tmp_path / "version.json"
    frozen = VersionFile(path)
    frozen.assign(epoch=1)
    VersionFile(path).assign(epoch=2, above=30)

    assert frozen.assign(epoch=1) == 32


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": "x", "epoch": 1}'])
def test_a_damaged_file_is_refused_and_not_taken_for_none(tmp_path, text):
    (tmp_path / "version.json").write_text(text)

    with pytest.raises(ConfigError, match="holds the newest policy version of the run"):
        VersionFile(tmp_path / "version.json")
