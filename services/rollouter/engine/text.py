"""From token ids to text while a completion grows: when a stop string has appeared, and what text is certain.

Guarantees: a stop string is noticed with the token that completes it, wherever the token boundaries are; streamed
pieces joined are exactly the final text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"
_WINDOW_SLACK = 4


class StopStrings:
    """Finds stop strings at the end of growing completions.

    Example: `StopStrings(decode, ("END",), {}).ends_with(tokens)` after each token.
    """

    def __init__(self, decode: Decode, stop: tuple[str, ...], pieces: dict[int, str]) -> None:
        """Prepare for one request.

        Args:
            decode: token ids to text.
            stop: the stop strings, none empty.
            pieces: text of single tokens, shared by all requests and filled as they are seen.
        """
        self._decode = decode
        self._stop = stop
        self._last_characters = {text[-1] for text in stop}
        self._pieces = pieces
        # A token that adds text adds at least one byte.
        self._window = max(len(text.encode()) for text in stop) + _WINDOW_SLACK

    def ends_with(self, token_ids: NDArray[np.int32]) -> bool:
        """Whether the newest token completed a stop string."""
        newest = int(token_ids[-1])
        piece = self._pieces.get(newest)
        if piece is None:
            piece = self._pieces[newest] = self._decode([newest])
        # Most tokens cannot end a stop string, and decoding a window for each would cost more than sampling it.
        if _INCOMPLETE not in piece and self._last_characters.isdisjoint(piece):
            return False
        tail = self._decode(token_ids[-self._window :].tolist())
        return any(text in tail for text in self._stop)


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str:
    """The text before the first stop string."""
    places = [place for place in (text.find(string) for string in stop) if place >= 0]
    return text[: min(places)] if places else text


class TextStream:
    """Yields the text of a growing completion in pieces that never have to be taken back.

    Example: `TextStream(decode, stop=("END",)).push([1, 2, 3])`.
    """

    def __init__(self, decode: Decode, stop: tuple[str, ...]) -> None:
        """Prepare for one request."""
        self._decode = decode
        self._hold_back = max((len(text) for text in stop), default=1) - 1
        self._ids: list[int] = []
        self._start = 0
        self._read = 0
        self._text = ""
        self._sent = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further tokens and return the text that has become certain.

        A character whose bytes are not complete, and what may be the beginning of a stop string, wait.
        """
        self._ids.extend(token_ids)
        # Decoding from a little before the new tokens keeps the spaces that tokenizers drop at the start of a text.
        known = self._decode(self._ids[self._start : self._read])
        text = self._decode(self._ids[self._start :])
        if len(text) > len(known) and not text.endswith(_INCOMPLETE):
            self._text += text[len(known) :]
            self._start, self._read = self._read, len(self._ids)
        certain = max(self._sent, len(self._text) - self._hold_back)
        piece = self._text[self._sent : certain]
        self._sent = certain
        return piece

    def finish(self, final_text: str) -> str:
        """The rest of the final text."""
        return final_text[self._sent :]
