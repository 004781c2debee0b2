from __future__ import annotations

import pytest

from services.common.errors import FencedError, InternalError, NotFoundError
from services.common.types import RunId
from services.queue.answers import expect_ok, status_of, texts

RUN = RunId("demo")


def test_common_refusals_become_exceptions():
    with pytest.raises(NotFoundError, match="no run 'demo'"):
        status_of([b"not_found"], RUN)
    with pytest.raises(FencedError, match="its epoch is 7"):
        status_of([b"fenced", b"7"], RUN)
    with pytest.raises(InternalError, match="strange"):
        expect_ok([b"strange"], RUN)


def test_other_answers_are_returned():
    assert status_of([b"conflict", b"x"], RUN) == "conflict"
    assert expect_ok([b"ok", 1, b"x"], RUN) == [1, b"x"]
    assert texts([b"a", 1]) == ["a", "1"]
