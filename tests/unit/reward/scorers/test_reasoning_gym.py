import json
import sys

import pytest

from services.common.scoring import ScorerOptions
from services.common.types import Message
from services.reward.scorers.port import Attempt, ScorerError
from services.reward.scorers.reasoning_gym import ReasoningGym, dataset_entry, library_version, scorer_info

reasoning_gym = pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def scorer():
    return ReasoningGym(ScorerOptions(scorer="reasoning_gym"))


def attempt(text, entry, *, nested=True):
    row = json.loads(json.dumps(entry))
    return Attempt(
        text=text,
        answer=row["answer"],
        metadata=row if nested else row["metadata"],
        messages=(Message(role="user", content=row["question"]),),
    )


@pytest.mark.parametrize("name", ["chain_sum", "leg_counting", "spell_backward", "countdown", "rearc", "mini_sudoku"])
@pytest.mark.parametrize("nested", [True, False])
def test_right_and_wrong_answers_are_told_apart_after_a_trip_through_json(scorer, name, nested):
    dataset = reasoning_gym.create_dataset(name, size=1, seed=3)
    entry = dataset[0]
    answer = entry["answer"] or entry["metadata"].get("expression", "")
    assert scorer(attempt(answer, entry, nested=nested)).reward == dataset.score_answer(answer, entry)
    assert scorer(attempt("no-such-answer", entry, nested=nested)).reward < 0.5


def test_an_answer_that_was_not_found_is_left_to_the_verifier(scorer):
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    assert scorer(attempt(None, entry)).reward == 0.0


def test_a_row_of_another_kind_is_an_error():
    with pytest.raises(ScorerError, match="source_dataset"):
        dataset_entry(Attempt(text="1", answer="1", metadata={"level": 3}, messages=()))


def test_the_version_is_that_of_the_library():
    assert scorer_info().version == f"reasoning-gym {library_version()}"
    assert "reasoning_gym" in sys.modules
