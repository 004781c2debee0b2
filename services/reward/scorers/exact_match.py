"""`exact_match`: the text is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.types import ScorerInfo
from services.reward.scorers.port import binary

if TYPE_CHECKING:
    from services.common.scoring import ScorerOptions
    from services.reward.scorers.port import Attempt, Verdict


class ExactMatch:
    r"""Gives 1 when text and answer are equal without the white space around them, else 0.

    Example: with answer `Paris`, the text ` Paris\n` scores 1; with `reward.ignore_case`, so does `PARIS`.
    """

    info = ScorerInfo(
        name="exact_match",
        version="1",
        description="1 when the text equals the answer, without the white space around both, else 0.",
    )

    def __init__(self, options: ScorerOptions) -> None:
        """Remember how to compare."""
        self._ignore_case = options.ignore_case

    def __call__(self, attempt: Attempt) -> Verdict:
        """Compare text and answer."""
        if attempt.text is None:
            return binary(correct=False)
        return binary(correct=self._normal(attempt.text) == self._normal(attempt.answer))

    def _normal(self, text: str) -> str:
        """Strip white space, and case where it does not count."""
        text = text.strip()
        return text.casefold() if self._ignore_case else text
