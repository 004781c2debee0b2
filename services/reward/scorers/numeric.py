r"""`numeric`: the last number in the text is the number in the answer.

What a number is:

- Digits, with an optional fraction after a point (`42`, `3.5`, `.5`) and an optional exponent (`1e-3`). The digits 0
  to 9 count, in ASCII or full width; a full stop that ends a sentence is not part of a number.
- Commas separate thousands only where every group after the first has three digits: `1,234,567` is one number, `1,23`
  is the two numbers 1 and 23.
- `+`, `-` or the minus sign U+2212 directly before the number is its sign, unless a letter, digit, underscore or
  closing bracket stands before it: `-5` is minus five, the last number of `3-5` is 5.
- `a/b` is a fraction, with spaces around the slash allowed and a denominator without sign; over zero it is no number.
- What follows does not matter (`42%`, `42km`, `2nd`); digits right after a letter or underscore are no number (`H2`).
- More than 400 characters are no number.

Numbers are compared exactly, as fractions: they are equal when they differ by at most `reward.numeric_tolerance`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from services.common.types import ScorerInfo
from services.reward.scorers.port import ScorerError, Verdict, binary

if TYPE_CHECKING:
    from services.common.scoring import ScorerOptions
    from services.reward.scorers.port import Attempt

_MAX_CHARACTERS = 400
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
_POINT_FIRST = r"\.[0-9]+(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
_NUMBER = re.compile(
    r"(?:(?<![A-Za-z0-9_)\]}])(?P<sign>[+-]))?"
    r"(?<![A-Za-z0-9_])(?<![0-9]\.)"
    rf"(?P<value>{_UNSIGNED}|{_POINT_FIRST})"
    rf"(?:[ ]?/[ ]?(?P<denominator>{_UNSIGNED}))?"
)
_ONE_FORM = {0x2212: "-"} | {0xFF10 + digit: str(digit) for digit in range(10)}


def last_number(text: str) -> Fraction | None:
    """Return the last number in `text` by the rules above, or None where there is none."""
    last = None
    for match in _NUMBER.finditer(text.translate(_ONE_FORM)):
        last = match
    if last is None or last.end() - last.start() > _MAX_CHARACTERS:
        return None
    value = Fraction(last["value"].replace(",", ""))
    if last["denominator"] is not None:
        denominator = Fraction(last["denominator"].replace(",", ""))
        if denominator == 0:
            return None
        value /= denominator
    return -value if last["sign"] == "-" else value


class Numeric:
    """Gives 1 when the last number of the text is the number of the answer, else 0.

    Example: with answer `#### 1,200`, the text `so that makes 1200.` scores 1.
    """

    info = ScorerInfo(
        name="numeric",
        version="1",
        description="1 when the last number in the text is the answer's number within the tolerance, else 0.",
    )

    def __init__(self, options: ScorerOptions) -> None:
        """Remember the tolerance."""
        self._tolerance = Fraction(options.numeric_tolerance)

    def __call__(self, attempt: Attempt) -> Verdict:
        """Compare the last numbers of text and answer."""
        wanted = last_number(attempt.answer)
        if wanted is None:
            raise ScorerError(f"the reference answer {attempt.answer[:80]!r} has no number; choose another scorer")
        got = None if attempt.text is None else last_number(attempt.text)
        correct = got is not None and abs(got - wanted) <= self._tolerance
        verdict = binary(correct=correct)
        return Verdict(reward=verdict.reward, parts={**verdict.parts, "has_number": float(got is not None)})
