import pytest

from services.common.scoring import BUILTIN_SCORERS, ScorerOptions
from services.reward.scorers.port import ScorerError
from services.reward.scorers.registry import load_scorer, usable_builtins

OPTIONS = ScorerOptions(scorer="numeric", regex="x")


@pytest.mark.parametrize("name", BUILTIN_SCORERS)
def test_every_builtin_can_be_loaded_under_its_name(name):
    info = load_scorer(name, options=OPTIONS).info
    assert info.name == name
    assert info.version
    assert info.description.endswith(".")


def test_every_builtin_is_described():
    assert {info.name for info in usable_builtins(OPTIONS)} == set(BUILTIN_SCORERS)
    assert "regex" not in {info.name for info in usable_builtins(ScorerOptions(scorer="numeric"))}


def test_a_module_that_the_configuration_does_not_name_is_never_imported():
    with pytest.raises(ScorerError, match="no scorer"):
        load_scorer("python:antigravity:fly", options=OPTIONS)
