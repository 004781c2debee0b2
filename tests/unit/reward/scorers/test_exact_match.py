import pytest

from services.common.scoring import ScorerOptions
from services.reward.scorers.exact_match import ExactMatch
from services.reward.scorers.port import Attempt


def score(text, answer, **options):
    scorer = ExactMatch(ScorerOptions(scorer="exact_match", **options))
    return scorer(Attempt(text=text, answer=answer, metadata={}, messages=())).reward


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("Paris", "Paris", 1.0),
        ("  Paris\n", "Paris ", 1.0),
        ("paris", "Paris", 0.0),
        ("Paris.", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("", "", 1.0),
        (None, "", 0.0),
        ("stra\u00dfe", "stra\u00dfe", 1.0),
        ("x" * 3_000_000, "x", 0.0),
    ],
)
def test_the_text_is_the_answer_or_it_is_not(text, answer, reward):
    assert score(text, answer) == reward


def test_case_can_be_left_out_of_account():
    assert score("STRASSE", "stra\u00dfe", ignore_case=True) == 1.0
    assert score("STRASSE", "stra\u00dfe") == 0.0
