import pytest

from services.common.errors import ConfigError
from services.common.types import Message
from services.reward.scorers.port import Attempt, ScorerError, checked
from services.reward.scorers.python_function import PythonFunction

MODULE = "python:tests.unit.reward.scorer_functions"


def run(function, text="four", **metadata):
    scorer = PythonFunction(f"{MODULE}:{function}")
    messages = (Message(role="user", content="?"),)
    return checked(scorer(Attempt(text=text, answer="four", metadata=metadata, messages=messages)))


def test_a_number_or_a_mapping_is_returned():
    assert run("plain").reward == 0.25
    assert run("plain", text="five").reward == -1.0
    verdict = run("length", weight=2)
    assert verdict.reward == 4.0
    assert verdict.parts == {"messages": 1.0, "weight": 2.0}


def test_text_that_extract_did_not_find_is_empty():
    assert run("length", text=None).reward == 0.0


@pytest.mark.parametrize("function", ["not_finite", "words"])
def test_what_is_no_finite_number_is_an_error(function):
    with pytest.raises(ScorerError):
        run(function)


def test_the_description_is_the_first_line_and_the_version_names_the_code():
    info = PythonFunction(f"{MODULE}:length").info
    assert info.description == "Counts characters."
    assert len(info.version) == 12


def test_a_missing_function_is_named():
    with pytest.raises(ScorerError, match="no function 'nothing'"):
        PythonFunction(f"{MODULE}:nothing")


def test_a_malformed_name_is_refused():
    with pytest.raises(ConfigError, match=r"python:package\.module:function"):
        PythonFunction("python:os.system")
