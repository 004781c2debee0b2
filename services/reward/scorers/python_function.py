"""`python:package.module:function`: a function of the user's own, named in the configuration and nowhere else."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from services.common.scoring import split_python_name
from services.common.types import ScorerInfo
from services.reward.scorers.port import ScorerError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.reward.scorers.port import Attempt


class PythonFunction:
    """Calls `function(completion=str, answer=str, metadata=dict, messages=list)`.

    The function returns a number, or `{"reward": number, "parts": {name: number}}`. Where `reward.extract` is set and
    finds nothing, `completion` is empty. Messages are dicts of `role` and `content`.

    Example: `python:my_rewards.math:score` calls `score` of the module `my_rewards.math`.
    """

    def __init__(self, name: str) -> None:
        """Import the module.

        Raises:
            ScorerError: there is no such function.
        """
        module_name, function_name = split_python_name(name)
        module = importlib.import_module(module_name)
        function = getattr(module, function_name, None)
        if not callable(function):
            raise ScorerError(f"module {module_name} has no function {function_name!r}")
        self._function: Callable[..., Any] = function
        self.info = ScorerInfo(name=name, version=_version(function), description=_description(function, name=name))

    def __call__(self, attempt: Attempt) -> Verdict:
        """Call the function."""
        result = self._function(
            completion=attempt.text or "",
            answer=attempt.answer,
            metadata=attempt.metadata,
            messages=[{"role": message.role, "content": message.content} for message in attempt.messages],
        )
        if not isinstance(result, Mapping):
            return Verdict(reward=_number(result, of="the result"))
        parts = result.get("parts") or {}
        return Verdict(
            reward=_number(result.get("reward"), of="reward"),
            parts={str(name): _number(value, of=f"part {name!r}") for name, value in parts.items()},
        )


def _number(value: object, *, of: str) -> float:
    """Take a number of any numeric type (NumPy's too); text and None are refused."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ScorerError(f"the scorer returned {value!r:.100} as {of}; a number is expected")
    return float(value)


def _version(function: Callable[..., Any]) -> str:
    """Name the code of the function's file, so that a change of rules shows in the scores."""
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        return "unknown"
    return hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def _description(function: Callable[..., Any], *, name: str) -> str:
    """Take the first line of the function's docstring."""
    lines = (inspect.getdoc(function) or "").splitlines()
    return lines[0][:200] if lines else f"The function {name.removeprefix('python:')}."
