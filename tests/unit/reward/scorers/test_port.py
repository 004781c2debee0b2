import math

import pytest

from services.reward.scorers.port import MAX_PARTS, ScorerError, Verdict, binary, checked


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number):
    with pytest.raises(ScorerError, match="finite"):
        checked(Verdict(reward=number))
    with pytest.raises(ScorerError, match="finite"):
        checked(Verdict(reward=0.0, parts={"style": number}))


def test_the_number_of_parts_is_bounded():
    checked(Verdict(reward=0, parts={str(i): 0 for i in range(MAX_PARTS)}))
    with pytest.raises(ScorerError, match="65 parts of at most 64"):
        checked(Verdict(reward=0, parts={str(i): 0 for i in range(MAX_PARTS + 1)}))


def test_right_is_one_and_wrong_is_zero():
    assert binary(correct=True).reward == 1.0
    assert binary(correct=False).reward == 0.0
