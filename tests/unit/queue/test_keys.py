from __future__ import annotations

import pytest

from services.common.errors import InvalidInputError
from services.common.types import LeaseId, Partition, RunId, TaskId
from services.queue.keys import body_key, check_id, deleted_key, payload_key, run_key, run_pattern


def test_all_keys_of_a_run_share_its_hash_tag():
    run_id = RunId("demo")
    assert run_key(run_id) == "hr:{demo}:run"
    assert deleted_key(run_id) == "hr:{demo}:deleted"
    assert run_pattern(run_id) == "hr:{demo}:*"
    assert payload_key(run_id, LeaseId("train/t1/2/3/4/9f")) == "hr:{demo}:train:payload:t1/2/3/4/9f"
    assert body_key(run_id, Partition.VALIDATION, TaskId("t1"), "abc") == "hr:{demo}:validation:task:t1/abc"


@pytest.mark.parametrize("text", ["", "a/b", "a b", "{a}", "a\n", "x" * 129, "\u00e4"])
def test_ids_that_cannot_be_part_of_a_key_are_refused(text):
    with pytest.raises(InvalidInputError, match="thing is"):
        check_id(text, "thing")
