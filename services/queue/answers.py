"""What scripts answer: a status first, then values. A refusal becomes the exception that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.common.errors import FencedError, InternalError, NotFoundError, StateFormatError

if TYPE_CHECKING:
    from services.common.types import RunId


def text(value: Any) -> str:  # noqa: ANN401 - one element of a reply
    """Return an element of a reply as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def texts(answer: list[Any]) -> list[str]:
    """Return a flat reply as texts."""
    return [text(value) for value in answer]


def status_of(answer: list[Any], run_id: RunId) -> str:
    """Return the status, unless it is a refusal that any call may meet.

    Raises:
        NotFoundError: there is no such run.
        FencedError: the caller's epoch is not the run's.
        StateFormatError: another version of Headrace wrote its state.
    """
    status = text(answer[0])
    if status == "not_found":
        raise NotFoundError(f"there is no run {run_id!r}; CreateRun makes it")
    if status == "fenced":
        raise FencedError(f"run {run_id!r} was taken over: its epoch is {text(answer[1])}; this trainer must stop")
    if status == "format":
        known, ours = text(answer[1]) or "none", text(answer[2])
        raise StateFormatError(
            f"run {run_id!r} is kept in state format {known} and this queue reads format {ours}; go on with the "
            "version of Headrace that wrote it, or drop what the queue holds (headrace delete RUN --force, or the "
            "redis folder of the run directory) and resume from the checkpoint",
            format=known,
        )
    return status


def expect_ok(answer: list[Any], run_id: RunId) -> list[Any]:
    """Return the values of an answer that can only be good or a common refusal."""
    status = status_of(answer, run_id)
    if status != "ok":
        raise InternalError(f"a script answered {status!r}")
    return answer[1:]
