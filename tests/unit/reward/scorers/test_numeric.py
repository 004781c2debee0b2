import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.scoring import ScorerOptions
from services.reward.scorers.numeric import Numeric, last_number
from services.reward.scorers.port import Attempt, ScorerError


def score(text, answer, **options):
    scorer = Numeric(ScorerOptions(scorer="numeric", **options))
    return scorer(Attempt(text=text, answer=answer, metadata={}, messages=()))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("The answer is 42.", 42),
        ("first 1, then 2", 2),
        ("-5", -5),
        ("is \u22125 degrees", -5),
        ("+7", 7),
        ("3-5", 5),
        ("x-5", 5),
        ("(2)-5", 5),
        ("= -5", -5),
        ("3.5", Fraction("3.5")),
        (".5", Fraction("0.5")),
        ("-.5", Fraction("-0.5")),
        ("1,234,567", 1234567),
        ("$1,234.50", Fraction("1234.5")),
        ("1,23", 23),
        ("1,2345", 2345),
        ("1,234,56", 56),
        ("1234,567", 567),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4", Fraction(-3, 4)),
        ("1,000/2,000", Fraction(1, 2)),
        ("0/5", 0),
        ("50%", 50),
        ("42km", 42),
        ("2nd", 2),
        ("1e-3", Fraction(1, 1000)),
        ("6.02E23", Fraction("6.02e23")),
        ("\\boxed{17}", 17),
        ("#### 1,200", 1200),
        ("\u7b54\u6848\u662f42", 42),
        ("\uff14\uff12", 42),
        ("007", 7),
        ("1.2.3", Fraction("1.2")),
        ("12345678901234567890123", 12345678901234567890123),
    ],
)
def test_numbers_are_read_by_the_written_rules(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize("text", ["", "no number", "H2", "x_2", "3/0", "9" * 401, ".", "-", "1" + "0" * 5000, "\ud800"])
def test_what_is_no_number_is_none(text):
    assert last_number(text) is None


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("so 1200.", "#### 1,200", 1.0),
        ("0.75", "3/4", 1.0),
        ("0.3333333", "1/3", 1.0),
        ("0.333", "1/3", 0.0),
        ("1234568", "1234567", 0.0),
        ("none", "3", 0.0),
        (None, "3", 0.0),
        ("", "3", 0.0),
        ("1/0", "3", 0.0),
    ],
)
def test_the_last_number_is_compared_with_the_answer(text, answer, reward):
    assert score(text, answer).reward == reward


def test_the_tolerance_is_absolute():
    assert score("10.4", "10", numeric_tolerance=0.5).reward == 1.0
    assert score("10.6", "10", numeric_tolerance=0.5).reward == 0.0


def test_an_answer_without_a_number_is_a_failure_and_no_reward():
    with pytest.raises(ScorerError, match="has no number"):
        score("3", "three")


def test_parts_tell_a_wrong_number_from_none():
    assert score("4", "3").parts == {"correct": 0.0, "has_number": 1.0}
    assert score("four", "3").parts == {"correct": 0.0, "has_number": 0.0}


@pytest.mark.parametrize(
    "text", ["1" * 2_000_000, "1,234" * 400_000, "1,11" * 500_000, "1/" * 1_000_000, "-" * 2_000_000]
)
def test_huge_texts_take_linear_time(text):
    began = time.perf_counter()
    last_number(text)
    assert time.perf_counter() - began < 5.0


@given(st.integers(-(10**20), 10**20), st.text(alphabet="abc ,.!\n", max_size=20))
def test_an_integer_is_found_after_any_words(number, words):
    assert last_number(f"{words} {number:,}") == number
    assert last_number(f"{words} {number}") == number


@given(st.text())
def test_any_text_is_survived(text):
    last_number(text)
