"""Dead letters in words."""

from services.common.types import DeadLetter, Partition, TaskId
from services.launcher.letters import letter_from_values, letter_lines


def _letter(sequence, *reasons):
    return DeadLetter(
        partition=Partition.TRAIN,
        task_id=TaskId(f"{sequence:08d}"),
        attempt=1,
        sequence=sequence,
        time=9.0,
        reasons=reasons,
    )


def test_nothing_is_said_of_nothing():
    assert letter_lines(0, []) == []


def test_the_newest_are_told_with_counted_reasons():
    letters = [_letter(9 - at, "engine_error", "lapsed", "engine_error") for at in range(5)]
    assert letter_lines(1234, letters) == [
        "1,234 tasks were dead-lettered; the newest:",
        "  train task 00000009 (attempt 1): engine_error x 2, lapsed",
        "  train task 00000008 (attempt 1): engine_error x 2, lapsed",
        "  train task 00000007 (attempt 1): engine_error x 2, lapsed",
    ]


def test_without_letters_the_count_is_told():
    assert letter_lines(1, []) == ["1 task was dead-lettered"]


def test_an_entry_of_the_ledger_file_is_read():
    values = {
        "partition": "train",
        "task_id": "00000003",
        "attempt": 1,
        "sequence": 3,
        "time": 9.0,
        "reasons": ["lapsed"],
    }
    assert letter_from_values(values) == _letter(3, "lapsed")
