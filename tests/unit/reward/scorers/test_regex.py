import pytest

from services.common.scoring import ScorerOptions
from services.reward.scorers.port import Attempt, ScorerError
from services.reward.scorers.regex import Regex


def score(text, answer, pattern):
    scorer = Regex(ScorerOptions(scorer="regex", regex=pattern))
    return scorer(Attempt(text=text, answer=answer, metadata={}, messages=()))


@pytest.mark.parametrize(
    ("text", "reward", "matched"),
    [
        ("so <a> 7 </a>", 1.0, 1.0),
        ("<a>7</a> no, <a>8</a>", 0.0, 1.0),
        ("<a>8</a> no, <a>7</a>", 1.0, 1.0),
        ("7", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_what_the_group_finds_last_is_compared(text, reward, matched):
    verdict = score(text, "7", r"<a>(?P<answer>.*?)</a>")
    assert verdict.reward == reward
    assert verdict.parts["matched"] == matched


def test_without_the_group_a_full_match_counts():
    assert score(" yes\n", "", r"yes|no").reward == 1.0
    assert score("yes and no", "", r"yes|no").reward == 0.0


def test_a_group_that_took_no_part_in_the_match_is_wrong():
    assert score("no", "7", r"(?P<answer>\d)|no").reward == 0.0


def test_text_that_extract_did_not_find_is_wrong():
    assert score(None, "7", r"(?P<answer>.*)").reward == 0.0


def test_a_missing_pattern_is_an_error():
    with pytest.raises(ScorerError, match=r"reward\.regex is empty"):
        score("7", "7", "")
