"""`regex`: a pattern finds the answer, or is the answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.common.scoring import extract_answer
from services.common.types import ScorerInfo
from services.reward.scorers.port import ScorerError, Verdict, binary

if TYPE_CHECKING:
    from services.common.scoring import ScorerOptions
    from services.reward.scorers.port import Attempt


class Regex:
    """Gives 1 when what the pattern's group `answer` finds last is the answer; without the group, for a full match.

    Example: with `reward.regex = "<a>(?P<answer>.*?)</a>"` and answer `7`, the text `so <a> 7 </a>` scores 1.
    """

    info = ScorerInfo(
        name="regex",
        version="1",
        description="1 when group `answer` of reward.regex finds the answer (without it: on a full match), else 0.",
    )

    def __init__(self, options: ScorerOptions) -> None:
        """Compile the pattern.

        Raises:
            ScorerError: there is none.
        """
        if not options.regex:
            raise ScorerError("reward.regex is empty; set the pattern that the regex scorer is to use")
        self._pattern = re.compile(options.regex)

    def __call__(self, attempt: Attempt) -> Verdict:
        """Apply the pattern."""
        if attempt.text is None:
            return binary(correct=False)
        if "answer" not in self._pattern.groupindex:
            return binary(correct=self._pattern.fullmatch(attempt.text.strip()) is not None)
        found = extract_answer(attempt.text, pattern=self._pattern)
        verdict = binary(correct=found is not None and found.strip() == attempt.answer.strip())
        return Verdict(reward=verdict.reward, parts={**verdict.parts, "matched": float(found is not None)})
