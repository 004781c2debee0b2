"""The state of every running request, kept as arrays so that a step costs no Python per slot.

Owns what has been sampled so far and when a request is done. Live slots are rows 0..n-1; a leaving row's place is taken
by the last one, exactly as in the model's forward.

Legend: `S` slots, `n` live rows, `V` vocabulary, `N` tokens sampled by a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from services.common.types import EndReason, VersionSpan
from services.rollouter.engine.sampling import RowSampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from services.common.errors import HeadraceError
    from services.rollouter.engine.port import GenerationRequest, TokenChunk
    from services.rollouter.engine.text import StopStrings, TextStream

    Deliver = Callable[[TokenChunk | HeadraceError], None]

_TOKEN_BLOCK = 64


@dataclass(slots=True, kw_only=True, eq=False)
class Occupant:
    """What a slot holds besides numbers."""

    request: GenerationRequest
    """Who asked."""
    deliver: Deliver
    """Where chunks, or the failure, go."""
    stops: StopStrings | None
    """Looks for stop strings; `None` when there are none."""
    text_stream: TextStream | None
    """Text in pieces, for a request that is streamed."""
    stretches: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version) of each stretch sampled by one version."""
    num_sent: int = 0
    """Tokens already streamed."""

    def spans(self, start: int, end: int) -> tuple[VersionSpan, ...]:
        """Which version sampled tokens `start` to `end`."""
        spans = []
        bounds = [first for first, _ in self.stretches[1:]] + [end]
        for (first, version), bound in zip(self.stretches, bounds, strict=True):
            span = VersionSpan(start=max(first, start), end=min(bound, end), version=version)
            if span.start < span.end:
                spans.append(span)
        return tuple(spans)


class SlotTable:
    """Running requests as struct of arrays.

    Example: `SlotTable(max_slots=64, context_length=1024, end_ids=(2,),
    vocabulary_size=512)`.
    """

    def __init__(self, *, max_slots: int, context_length: int, end_ids: tuple[int, ...], vocabulary_size: int) -> None:
        """Start empty.

        Args:
            max_slots: `S`.
            context_length: most tokens of prompt and completion.
            end_ids: the model's own end tokens; those outside the vocabulary never come.
            vocabulary_size: `V`.
        """
        self._context_length = context_length
        self._is_end = np.zeros(vocabulary_size, dtype=np.bool_)
        self._is_end[[token for token in end_ids if token < vocabulary_size]] = True
        self.occupants: list[Occupant] = []
        self._prompt_lengths = np.zeros(max_slots, dtype=np.int64)
        self._counts = np.zeros(max_slots, dtype=np.int64)
        self._limits = np.zeros(max_slots, dtype=np.int64)
        self._newest = np.zeros(max_slots, dtype=np.int64)
        self._seeds = np.zeros(max_slots, dtype=np.uint64)
        self._temperature = np.zeros(max_slots, dtype=np.float32)
        self._top_p = np.zeros(max_slots, dtype=np.float32)
        self._top_k = np.zeros(max_slots, dtype=np.int64)
        self._looks_closer = np.zeros(max_slots, dtype=np.bool_)
        self._token_ids = np.zeros((max_slots, _TOKEN_BLOCK), dtype=np.int32)
        self._logprobs = np.zeros((max_slots, _TOKEN_BLOCK), dtype=np.float32)

    def __len__(self) -> int:
        """Live rows."""
        return len(self.occupants)

    def add(self, occupant: Occupant, version: int) -> None:
        """Take the next row; its first token will be sampled by `version`."""
        row, request = len(self.occupants), occupant.request
        sampling = request.sampling
        self.occupants.append(occupant)
        occupant.stretches = [(0, version)]
        self._prompt_lengths[row] = len(request.prompt_ids)
        self._counts[row] = 0
        self._limits[row] = min(sampling.max_new_tokens, self._context_length - len(request.prompt_ids))
        self._seeds[row] = request.seed
        self._temperature[row] = sampling.temperature
        self._top_p[row] = sampling.top_p
        self._top_k[row] = sampling.top_k
        self._looks_closer[row] = occupant.stops is not None or bool(sampling.stop_token_ids)

    def inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`[n]` newest token of each row and its position, to be fed next."""
        n = len(self)
        return self._newest[:n], self._prompt_lengths[:n] + self._counts[:n] - 1

    def sampling(self, rows: slice) -> RowSampling:
        """How to sample the next token of these rows."""
        return RowSampling(
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            seeds=self._seeds[rows],
            positions=self._prompt_lengths[rows] + self._counts[rows],
        )

    def record(self, rows: slice, token_ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> list[int]:
        """Append one token to each of these rows and return the rows that may be done, ascending."""
        counts = self._counts[rows]
        if int(counts.max()) >= self._token_ids.shape[1]:
            self._widen()
        index = np.arange(rows.start, rows.stop)
        self._token_ids[index, counts] = token_ids
        self._logprobs[index, counts] = logprobs
        self._newest[rows] = token_ids
        counts += 1
        candidates = self._is_end[token_ids] | (counts >= self._limits[rows])
        candidates |= self._looks_closer[rows] | ~np.isfinite(logprobs)
        return [int(row) for row in np.flatnonzero(candidates) + rows.start]

    def is_broken(self, row: int) -> bool:
        """Whether the row's newest token came from non-finite logits."""
        return not bool(np.isfinite(self._logprobs[row, self._counts[row] - 1]))

    def ends_with_token(self, row: int) -> bool:
        """Whether the row's newest token is an end token."""
        newest = int(self._newest[row])
        return bool(self._is_end[newest]) or newest in self.occupants[row].request.sampling.stop_token_ids

    def end_reason(self, row: int) -> EndReason | None:
        """Why the row is done; `None` if it is not."""
        if self.ends_with_token(row):
            return EndReason.STOP
        occupant = self.occupants[row]
        if occupant.stops is not None and occupant.stops.ends_with(self._token_ids[row, : self._counts[row]]):
            return EndReason.STOP
        return EndReason.LENGTH if self._counts[row] >= self._limits[row] else None

    def sampled(self, row: int, start: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Copies of the row's tokens and log-probabilities from token `start` on."""
        end = int(self._counts[row])
        return self._token_ids[row, start:end].copy(), self._logprobs[row, start:end].copy()

    def remove(self, row: int) -> None:
        """Free a row; the last one takes its place."""
        last = len(self.occupants) - 1
        for array in (
            self._prompt_lengths,
            self._counts,
            self._limits,
            self._newest,
            self._seeds,
            self._temperature,
            self._top_p,
            self._top_k,
            self._looks_closer,
            self._token_ids,
            self._logprobs,
        ):
            array[row] = array[last]
        self.occupants[row] = self.occupants[last]
        self.occupants.pop()

    def change_version(self, version: int) -> None:
        """From here on tokens of running rows are sampled by `version`."""
        for row, occupant in enumerate(self.occupants):
            occupant.stretches.append((int(self._counts[row]), version))

    def _widen(self) -> None:
        """Double the room for sampled tokens."""
        self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)), axis=1)
        self._logprobs = np.concatenate((self._logprobs, np.zeros_like(self._logprobs)), axis=1)
