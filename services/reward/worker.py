"""The program of a worker process: loads scorers, judges one attempt at a time, and is killed without regret.

Owns all scorer libraries, so that the service's own process stays small. Reads frames from its first pipe and answers
on its second; the end of the first ends it. What scorers print goes to standard error and cannot disturb the answers.
A timer of the operating system ends a worker whose parent died while a scorer was running.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from services.common.scoring import ScorerOptions, extract_answer
from services.common.types import Message
from services.reward.frames import encode_frame, read_frame
from services.reward.scorers.port import Attempt, ScorerError, checked
from services.reward.scorers.registry import load_scorer

if TYPE_CHECKING:
    from services.reward.scorers.port import Scorer

_MAX_MESSAGE_CHARACTERS = 300
_ORPHAN_GRACE_SECONDS = 5.0


class Judge:
    """Scores attempts with scorers that it loads when they are first named, and keeps."""

    def __init__(self, options: ScorerOptions) -> None:
        """Load nothing yet."""
        self._options = options
        self._extract = re.compile(options.extract) if options.extract else None
        self._scorers: dict[str, Scorer] = {}

    def load(self, name: str) -> Scorer:
        """Return the scorer called `name`."""
        if name not in self._scorers:
            self._scorers[name] = load_scorer(name, options=self._options)
        return self._scorers[name]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Judge one attempt; everything that goes wrong becomes an answer that says so."""
        try:
            verdict = checked(self.load(request["scorer"])(self._attempt(request)))
        except ScorerError as error:
            return {"error": _sentence(str(error))}
        except (Exception, SystemExit) as error:
            # The boundary to code of any quality: whatever it raises fails this score and no other.
            return {"error": _sentence(f"the scorer raised {type(error).__name__}: {error}")}
        return {"reward": verdict.reward, "parts": {_printable(name): part for name, part in verdict.parts.items()}}

    def _attempt(self, request: dict[str, Any]) -> Attempt:
        """Read the request."""
        completion = request["completion"]
        metadata = _metadata(request["metadata_json"])
        return Attempt(
            text=completion if self._extract is None else extract_answer(completion, pattern=self._extract),
            answer=request["answer"],
            metadata=metadata,
            messages=tuple(Message(role=role, content=content) for role, content in request["messages"]),
        )


def main() -> int:
    """Serve until the parent closes the pipe."""
    requests, replies = _private_pipes()
    start = read_frame(requests)
    if start is None:
        return 0
    judge = Judge(ScorerOptions(**start["options"] | {"python_scorers": tuple(start["options"]["python_scorers"])}))
    try:
        infos = [judge.load(name).info for name in start["preload"]]
    except (Exception, SystemExit) as error:
        # Importing a user's module may raise anything; the parent tells it to the user in one sentence.
        _send(replies, {"failed": _sentence(f"{type(error).__name__}: {error}")})
        return 1
    _send(replies, {"ready": [[info.name, info.version, info.description] for info in infos]})
    while (request := read_frame(requests)) is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, start["timeout_seconds"] + _ORPHAN_GRACE_SECONDS)
        reply = judge.answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _send(replies, reply)
    return 0


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes to the parent for us: scorers find an empty input, and print to standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _send(replies: BinaryIO, payload: dict[str, Any]) -> None:
    """Answer the parent."""
    replies.write(encode_frame(payload))
    replies.flush()


def _metadata(text: str) -> dict[str, object]:
    """Parse the row's other fields."""
    try:
        metadata = json.loads(text or "{}")
    except ValueError as error:
        raise ScorerError(f"metadata_json is no JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise ScorerError(f"metadata_json is a {type(metadata).__name__}; a JSON object is expected")
    return metadata


def _sentence(text: str) -> str:
    """Cut a message to what fits into the headers of an answer."""
    return _printable(text[:_MAX_MESSAGE_CHARACTERS])


def _printable(text: str) -> str:
    """Replace what cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    sys.exit(main())
