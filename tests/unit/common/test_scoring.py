import subprocess
import sys

import pytest

from services.common.config.serving import RewardSection
from services.common.errors import ConfigError
from services.common.scoring import ScorerOptions, answer_form, check_scorer, probe_scorer
from services.common.types import Score


def scorer_by(rule):
    async def score(completion):
        return Score(reward=rule(completion), parts={}, scorer="test", scorer_version="1")

    return score


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"scorer": "exactmatch"}, "no scorer 'exactmatch'; did you mean 'exact_match'"),
        ({"scorer": "zzzz"}, "known are exact_match, numeric, reasoning_gym, regex"),
        ({"scorer": "regex"}, "reward.regex is empty"),
        ({"scorer": "regex", "regex": "("}, "reward.regex = '\\(' is no regular expression"),
        ({"extract": "["}, "reward.extract = '\\[' is no regular expression"),
        ({"scorer": "python:os.system"}, "python:package.module:function"),
        ({"scorer": "python:no_such_package.rewards:score"}, "there is no package 'no_such_package'"),
        ({"python_scorers": ("numerik",)}, "did you mean 'numeric'"),
    ],
)
def test_mistakes_are_found_before_anything_starts(section, message):
    with pytest.raises(ConfigError, match=message):
        check_scorer(RewardSection(**section))


def test_good_configurations_pass():
    for section in (
        {"scorer": "numeric"},
        {"scorer": "reasoning_gym"},
        {"scorer": "regex", "regex": "a"},
        {"scorer": "python:json.decoder:JSONDecoder"},
    ):
        assert check_scorer(RewardSection(**section)).scorer == section["scorer"]


def test_checking_imports_no_scorer_library_and_no_module_of_the_users():
    code = (
        "import sys\n"
        "from services.common.config.serving import RewardSection\n"
        "from services.common.scoring import check_scorer\n"
        "check_scorer(RewardSection(scorer='reasoning_gym', python_scorers=('python:xml.dom.minidom:parse',)))\n"
        "heavy = ('reasoning_gym', 'numpy', 'torch', 'grpc', 'xml.dom.minidom')\n"
        "sys.exit(any(name in sys.modules for name in heavy))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"scorer": "numeric"}, "{}"),
        ({"scorer": "numeric", "extract": r"<answer>(.*?)</answer>"}, "<answer>{}</answer>"),
        ({"scorer": "exact_match", "extract": r"\\boxed\{(.*?)\}"}, "\\boxed{{{}}}"),
        ({"scorer": "regex", "regex": r"#### (?P<answer>\S+)"}, "#### {}"),
        ({"scorer": "exact_match", "extract": "never"}, None),
    ],
)
def test_an_answer_is_written_so_that_the_patterns_find_it(options, form):
    assert answer_form("42", options=ScorerOptions(**options)) == form


async def test_a_probe_tells_whether_right_scores_higher_than_wrong():
    options = ScorerOptions(scorer="exact_match", extract="<answer>(.*?)</answer>")
    good = await probe_scorer(scorer_by(lambda text: float("42" in text)), answer="42", options=options)
    assert good.tells_apart
    assert good.right_text == "<answer>42</answer>"
    blind = await probe_scorer(scorer_by(lambda _: 1.0), answer="42", options=options)
    assert not blind.tells_apart


async def test_a_pattern_that_no_answer_fits_is_named():
    with pytest.raises(ConfigError, match=r"reward\.extract"):
        await probe_scorer(
            scorer_by(lambda _: 1.0), answer="42", options=ScorerOptions(scorer="numeric", extract="never")
        )
