"""`reasoning_gym`: the verifier of the dataset that the task came from."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Protocol, cast

from services.common.types import ScorerInfo
from services.reward.scorers.port import ScorerError, Verdict

if TYPE_CHECKING:
    from services.common.scoring import ScorerOptions
    from services.reward.scorers.port import Attempt

_TUPLE_DATASETS = frozenset({"arc_agi", "rearc"})


class _Verifier(Protocol):
    """A dataset's `score_answer`."""

    def __call__(self, answer: str | None, entry: dict[str, object]) -> float:
        """Score `answer` against the dataset entry."""
        ...


def library_version() -> str:
    """Return the version of the installed library, without importing it; empty where it is not installed."""
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        return ""


def scorer_info() -> ScorerInfo:
    """Describe the scorer without importing the library."""
    return ScorerInfo(
        name="reasoning_gym",
        version=f"reasoning-gym {library_version()}",
        description="The reasoning_gym verifier of the dataset named in the row's metadata.source_dataset.",
    )


class ReasoningGym:
    """Gives what the library's own verifier gives, mostly between 0 and 1.

    Example: a row `{"metadata": {"source_dataset": "leg_counting", ...}}` is scored by that dataset's `score_answer`.
    """

    def __init__(self, options: ScorerOptions) -> None:
        """Import the library, which takes most of a second."""
        del options
        library = importlib.import_module("reasoning_gym")
        self.info = scorer_info()
        self._verifier = functools.lru_cache(maxsize=256)(library.get_score_answer_fn)

    def __call__(self, attempt: Attempt) -> Verdict:
        """Ask the verifier."""
        entry = dataset_entry(attempt)
        source = cast("dict[str, object]", entry["metadata"])["source_dataset"]
        verifier = cast("_Verifier", self._verifier(source))
        return Verdict(reward=float(verifier(attempt.text, entry)))


def dataset_entry(attempt: Attempt) -> dict[str, object]:
    """Rebuild the dataset's entry from the row: either it is carried whole, or the row's fields are its metadata.

    Raises:
        ScorerError: the row does not say which dataset it came from.
    """
    row = attempt.metadata
    metadata = row["metadata"] if isinstance(row.get("metadata"), dict) else row
    metadata = cast("dict[str, object]", metadata)
    source = metadata.get("source_dataset")
    if not isinstance(source, str):
        raise ScorerError("the row has no metadata.source_dataset; use rows made by reasoning_gym or another scorer")
    if source in _TUPLE_DATASETS:
        metadata = {name: _with_tuples(value) for name, value in metadata.items()}
    question = attempt.messages[-1].content if attempt.messages else ""
    return {"question": question, "answer": attempt.answer, **row, "metadata": metadata}


def _with_tuples(value: object) -> object:
    """Turn the lists that JSON made back into the tuples that these datasets compare with."""
    return tuple(_with_tuples(item) for item in value) if isinstance(value, list) else value
