from __future__ import annotations

import pytest

from services.common.errors import InvalidInputError
from services.common.types import LeaseId, MemberKey, Partition, TaskId
from services.queue.records import format_lease_id, parse_lease_id
from tests.unit.queue.driver import stored_task


def test_a_lease_id_names_the_trajectory_the_issue_and_the_lease():
    key = MemberKey(partition=Partition.VALIDATION, task_id=TaskId("00000012"), attempt=1, member=3)
    assert format_lease_id(key, 2, "9f") == "validation/00000012/1/3/2/9f"
    assert parse_lease_id(LeaseId("validation/00000012/1/3/2/9f")) == (key, "2/9f")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train/a/0/0/0",
        "test/a/0/0/0/f",
        "train/a/0/x/0/f",
        "train/a/0/0/-1/f",
        "train/a/0/0/0/",
        "train/a/0/0/0/f-",
        "train/a/0/0/0/f/0",
        "train/a/0/0/0/" + "f" * 33,
    ],
)
def test_foreign_lease_ids_are_refused(text):
    with pytest.raises(InvalidInputError, match="lease_id"):
        parse_lease_id(LeaseId(text))


def test_the_content_of_a_task_is_that_of_its_body():
    assert stored_task(1).content == stored_task(1).content
    assert stored_task(1).content != stored_task(1, body=b"other").content
