"""Scorers by name. Which names a task may give is decided before, in `services.common.scoring`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.scoring import PYTHON_PREFIX, ScorerOptions, unknown_scorer
from services.reward.scorers import reasoning_gym
from services.reward.scorers.exact_match import ExactMatch
from services.reward.scorers.numeric import Numeric
from services.reward.scorers.port import ScorerError
from services.reward.scorers.python_function import PythonFunction
from services.reward.scorers.regex import Regex

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.types import ScorerInfo
    from services.reward.scorers.port import Scorer

_FACTORIES: dict[str, Callable[[ScorerOptions], Scorer]] = {
    "exact_match": ExactMatch,
    "numeric": Numeric,
    "regex": Regex,
    "reasoning_gym": reasoning_gym.ReasoningGym,
}


def load_scorer(name: str, *, options: ScorerOptions) -> Scorer:
    """Make the scorer called `name`, importing what it needs.

    Raises:
        ScorerError: the configuration does not name it.
    """
    if name not in options.allowed:
        raise ScorerError(unknown_scorer(name, known=options.allowed))
    if name.startswith(PYTHON_PREFIX):
        return PythonFunction(name)
    return _FACTORIES[name](options)


def usable_builtins(options: ScorerOptions) -> tuple[ScorerInfo, ...]:
    """Describe the built-in scorers that can be used here: with a pattern, with the library installed."""
    infos = [ExactMatch.info, Numeric.info]
    if options.regex:
        infos.append(Regex.info)
    if reasoning_gym.library_version():
        infos.append(reasoning_gym.scorer_info())
    return tuple(infos)
