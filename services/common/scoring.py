"""What can be known of scorers without running one: their names, whether a configuration fits, how to probe them.

Owns the rule of which scorers a task may name: the built-in ones, the run's default and those listed in
`reward.python_scorers`; what comes from outside never chooses a module to import. Loads no scorer library, so that the
command line and the trainer can check a configuration before anything starts.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.common.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.common.config.serving import RewardSection
    from services.common.types import Score

BUILTIN_SCORERS = ("exact_match", "numeric", "regex", "reasoning_gym")
"""Names that are always known."""

PYTHON_PREFIX = "python:"
"""Begins the name of a scorer that is a function of the user's own."""

_PYTHON_NAME = re.compile(r"python:(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)", re.ASCII)

_ANSWER_FORMS = ("{}", "<answer>{}</answer>", "<answer>\n{}\n</answer>", "\\boxed{{{}}}", "#### {}", "Answer: {}")
_WRONG_ANSWER = "no-such-answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions:
    """The part of `[reward]` that scorers read; plain values, because it crosses to worker processes as JSON."""

    scorer: str
    """The default scorer."""
    extract: str = ""
    """Pattern whose last match in the completion is scored; empty scores the whole completion."""
    regex: str = ""
    """Pattern of the `regex` scorer."""
    numeric_tolerance: float = 1e-6
    """Largest absolute difference that `numeric` lets pass."""
    ignore_case: bool = False
    """Whether `exact_match` compares without regard to case."""
    python_scorers: tuple[str, ...] = ()
    """Further scorers that a task may name, as `python:package.module:function`."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every name that a task may give, the default first, without repeats."""
        return tuple(dict.fromkeys((self.scorer, *BUILTIN_SCORERS, *self.python_scorers)))


def scorer_options(section: RewardSection) -> ScorerOptions:
    """Take what scorers read from `[reward]`."""
    return ScorerOptions(
        scorer=section.scorer,
        extract=section.extract,
        regex=section.regex,
        numeric_tolerance=section.numeric_tolerance,
        ignore_case=section.ignore_case,
        python_scorers=section.python_scorers,
    )


def check_scorer(section: RewardSection) -> ScorerOptions:
    """Find what is wrong with `[reward]` before anything starts; imports no scorer library.

    Returns:
        The checked options.

    Raises:
        ConfigError: the scorer is unknown (names the nearest), a pattern does not compile, or a package is missing.
    """
    options = scorer_options(section)
    _compiled(options.extract, key="reward.extract")
    pattern = _compiled(options.regex, key="reward.regex")
    for name in (options.scorer, *options.python_scorers):
        _check_name(name, known=options.allowed)
    if options.scorer == "regex" and pattern is None:
        raise ConfigError(
            'reward.scorer is "regex" but reward.regex is empty; set the pattern that an answer must match'
        )
    if options.scorer == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError(
            'reward.scorer is "reasoning_gym" but the package is not installed; pip install "headrace[reward]"'
        )
    return options


def unknown_scorer(name: str, *, known: Collection[str]) -> str:
    """Word the sentence that says which scorer was meant."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"no scorer {name[:200]!r}; {hint}"


def require_allowed(name: str, *, known: Collection[str]) -> None:
    """Refuse a scorer that neither ships with Headrace nor is named in the configuration.

    Raises:
        NotFoundError: `name` is not in `known`.
    """
    if name not in known:
        sentence = unknown_scorer(name, known=known)
        if name.startswith(PYTHON_PREFIX):
            sentence += " (a task may only name python scorers that are listed in reward.python_scorers)"
        raise NotFoundError(sentence)


def split_python_name(name: str) -> tuple[str, str]:
    """Split `python:package.module:function` into module and function.

    Raises:
        ConfigError: `name` has another form.
    """
    match = _PYTHON_NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"scorer {name[:200]!r} does not have the form python:package.module:function")
    return match["module"], match["function"]


class ScoreText(Protocol):
    """Scores one text against the answer that is probed: a client's or a core's `score`, bound to a task."""

    async def __call__(self, completion: str) -> Score:
        """Score `completion`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a scorer said of a right and of a wrong answer."""

    right_text: str
    """The completion that should score high."""
    right: Score
    """Its score."""
    wrong_text: str
    """The completion that should score low."""
    wrong: Score
    """Its score."""

    @property
    def tells_apart(self) -> bool:
        """Whether the right answer scored higher."""
        return self.right.reward > self.wrong.reward


async def probe_scorer(score: ScoreText, *, answer: str, options: ScorerOptions) -> Probe:
    """Score a right and a wrong answer, so that a scorer that cannot teach is seen before training.

    Raises:
        ConfigError: no usual way of writing `answer` fits `reward.extract` or `reward.regex`.
    """
    form = answer_form(answer, options=options)
    if form is None:
        raise ConfigError(
            f"answer {answer[:80]!r} written in the usual ways does not match reward.extract or reward.regex; "
            "check the pattern"
        )
    right, wrong = form.format(answer), form.format(_WRONG_ANSWER)
    return Probe(right_text=right, right=await score(right), wrong_text=wrong, wrong=await score(wrong))


def answer_form(answer: str, *, options: ScorerOptions) -> str | None:
    """Find a usual way of writing `answer` in which the configured patterns find it, as a format string, or None."""
    extract = _compiled(options.extract, key="reward.extract")
    pattern = _compiled(options.regex, key="reward.regex") if options.scorer == "regex" else None
    for form in _ANSWER_FORMS:
        text = form.format(answer)
        scored = text if extract is None else extract_answer(text, pattern=extract)
        if scored is None:
            continue
        if pattern is None or pattern.search(scored) is not None:
            return form
    return None


def extract_answer(text: str, *, pattern: re.Pattern[str]) -> str | None:
    """Return what the last match of `pattern` says: group `answer`, else the first group, else the match itself."""
    last = None
    for match in pattern.finditer(text):
        last = match
    if last is None:
        return None
    if "answer" in pattern.groupindex:
        found: str | None = last["answer"]
        return found
    return last[1] if pattern.groups else last[0]


def _compiled(source: str, *, key: str) -> re.Pattern[str] | None:
    """Compile a pattern of the configuration; an empty one is off."""
    if not source:
        return None
    try:
        return re.compile(source)
    except re.error as error:
        raise ConfigError(f"{key} = {source[:200]!r} is no regular expression: {error}") from error


def _check_name(name: str, *, known: Collection[str]) -> None:
    """Refuse a configured name that cannot be loaded, as far as that shows without importing it."""
    if name in BUILTIN_SCORERS:
        return
    if not name.startswith(PYTHON_PREFIX):
        raise ConfigError(f"reward: {unknown_scorer(name, known=[one for one in known if one != name])}")
    module, _ = split_python_name(name)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ConfigError(f"scorer {name!r}: there is no package {module.partition('.')[0]!r} to import")
