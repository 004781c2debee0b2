"""The thread that decodes: admits requests, steps all of them, ends them, and changes weights in between.

Owns the order of things. Consumes: commands from the event loop and waiting requests (bounded by whoever submits).
Produces: chunks, handed to the event loop once per step. Waits for: a command, when nothing runs. Unblocked by:
`submit`, `adopt`, `stop`.

A turn of the loop: take commands; swap weights if that is due; admit as many waiting requests as there are free slots;
sample one token for every live row; hand out what is done. Weights change only between two turns' passes, so every
token has exactly one version.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.common.errors import HeadraceError, InternalError, UnavailableError
from services.rollouter.engine.port import NO_VERSION, STREAM_SECONDS, TokenChunk
from services.rollouter.engine.sampling import sample
from services.rollouter.engine.slots import Occupant, SlotTable
from services.rollouter.engine.text import StopStrings, TextStream, cut_at_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from services.common.types import EndReason
    from services.rollouter.engine.forward import Forward
    from services.rollouter.engine.port import GenerationRequest
    from services.rollouter.engine.slots import Deliver
    from services.rollouter.engine.text import Decode
    from services.rollouter.engine.weight_swap import PreparedWeights

    Post = Callable[[list[tuple[Deliver, TokenChunk | HeadraceError]]], None]

logger = logging.getLogger(__name__)

MAX_PREFILL_TOKENS = 8192
"""Tokens, padding included, that one prefill pass reads; running requests wait for it."""
MAX_PREFILL_LOGITS = 2**26
"""Numbers that the logits of one prefill pass may have."""
_IDLE_SECONDS = 1.0
_JOIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swapped:
    """What a weight swap leaves behind."""

    pause_seconds: float
    """Time in which nothing could be sampled."""
    old: list[torch.Tensor]
    """The replaced tensors; dropping them frees their memory, which the decode thread must not wait for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Adoption:
    """A weight swap that waits for its turn."""

    prepared: PreparedWeights
    version: int
    digest: str
    keep_running: bool
    done: Future[Swapped]


class DecodeLoop:
    """Runs a model's decode loop in a thread of its own.

    Example:
        loop = DecodeLoop(forward=forward, table=table, decode=decode, post=post, max_slots=64, threads=1)
        loop.start()
        loop.submit(request, deliver=queue.put_nowait, live=False)
        loop.stop()
    """

    def __init__(
        self,
        *,
        forward: Forward,
        table: SlotTable,
        decode: Decode,
        post: Post,
        max_slots: int,
        threads: int,
    ) -> None:
        """Wire the parts; nothing runs yet.

        Args:
            forward: the model's passes; used from the thread only.
            table: state of running requests; used from the thread only.
            decode: token ids to text without special tokens; used from the thread only.
            post: called from the thread with everything one turn has to hand out.
            max_slots: requests that run at once.
            threads: compute threads; 0 leaves the choice to torch.
        """
        self._forward = forward
        self._table = table
        self._decode = decode
        self._post = post
        self._max_slots = max_slots
        self._threads = threads
        self._thread = threading.Thread(target=self._run, name="decode-loop", daemon=True)
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._held = False
        self._waiting: deque[Occupant] = deque()
        self._adoption: _Adoption | None = None
        self._policy = (NO_VERSION, "")
        self._oldest: dict[str, int] = {}
        self._outbox: list[tuple[Deliver, TokenChunk | HeadraceError]] = []
        self._pieces: dict[int, str] = {}
        self._streamed_at = 0.0
        self._failure: HeadraceError | None = None

    @property
    def policy(self) -> tuple[int, str]:
        """Version and digest of the weights that sample now."""
        return self._policy

    def oldest_versions(self) -> dict[str, int]:
        """First version of each running request."""
        return dict(self._oldest)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Fail what is held and wait for the thread to end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_JOIN_SECONDS)

    def submit(self, request: GenerationRequest, *, deliver: Deliver, live: bool) -> None:
        """Hand over a checked request.

        Args:
            request: what to sample.
            deliver: gets the chunks, the last one with an end reason, or one failure.
            live: deliver while it grows, not only at the end.
        """
        stop = request.sampling.stop
        occupant = Occupant(
            request=request,
            deliver=deliver,
            stops=StopStrings(self._decode, stop, self._pieces) if stop else None,
            text_stream=TextStream(self._decode, stop) if live else None,
        )
        self._command(lambda: self._waiting.append(occupant))

    def abort(self, request_id: str) -> None:
        """Drop a request between two steps; nothing more is delivered for it. An unknown id is fine."""
        self._enqueue(lambda: self._abort(request_id))

    def hold(self) -> None:
        """Start no further request until the next swap or `release`."""
        self._held = True

    def release(self) -> None:
        """Undo `hold`."""
        self._held = False
        self._enqueue(lambda: None)

    def adopt(self, prepared: PreparedWeights, version: int, digest: str, *, keep_running: bool) -> Future[Swapped]:
        """Ask for a swap; only one may be under way. Cancelling the future withdraws it if it has not happened yet."""
        done: Future[Swapped] = Future()
        adoption = _Adoption(prepared=prepared, version=version, digest=digest, keep_running=keep_running, done=done)

        def take() -> None:
            self._adoption = adoption

        self._command(take)
        return done

    def _command(self, action: Callable[[], None]) -> None:
        """Run an action on the thread, between two passes.

        Raises:
            HeadraceError: the thread has ended, for this reason.
        """
        failure = self._enqueue(action)
        if failure is not None:
            raise failure

    def _enqueue(self, action: Callable[[], None]) -> HeadraceError | None:
        """Leave an action for the thread; why it ended, if it has."""
        with self._changed:
            if self._failure is None:
                self._inbox.append(action)
                self._changed.notify()
            return self._failure

    def _run(self) -> None:
        """The thread's life."""
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            while self._take_commands():
                self._swap_if_due()
                self._admit()
                self._step()
                self._flush()
            self._end(UnavailableError("the engine is stopped"))
        except Exception:
            # The boundary of the thread: whoever waits must hear of it, now and later.
            logger.exception("the decode loop died")
            self._end(InternalError("the decode loop died; see the replica's log"))

    def _take_commands(self) -> bool:
        """Run all commands; wait for one when there is nothing else to do. False when it is time to stop."""
        with self._changed:
            idle = not self._table and (self._held or not self._waiting) and self._adoption is None
            while idle and not self._inbox and not self._stopping:
                self._changed.wait(_IDLE_SECONDS)
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return not self._stopping

    def _swap_if_due(self) -> None:
        """Change the weights, unless running requests have to end first."""
        adoption = self._adoption
        if adoption is None or (self._table and not adoption.keep_running):
            return
        self._adoption = None
        if not adoption.done.set_running_or_notify_cancel():
            return
        began = time.perf_counter()
        try:
            old = adoption.prepared.swap()
        except BaseException:
            # Half of the weights may be new: nothing must be sampled any more, so the thread ends with this error.
            adoption.done.set_exception(InternalError("the weight swap broke off; see the replica's log"))
            raise
        self._forward.forget()
        self._policy = (adoption.version, adoption.digest)
        self._table.change_version(adoption.version)
        self._held = False
        adoption.done.set_result(Swapped(pause_seconds=time.perf_counter() - began, old=old))

    def _admit(self) -> None:
        """Move waiting requests into free slots, in the order they came."""
        batch = self._next_batch()
        if not batch:
            return
        first = len(self._table)
        try:
            logits = self._forward.prefill(first, [occupant.request.prompt_ids for occupant in batch])
        except Exception as error:
            # The pass of the newcomers failed; running requests have nothing to do with it.
            self._report("prefill failed", error, [occupant.deliver for occupant in batch])
            return
        for occupant in batch:
            self._table.add(occupant, self._policy[0])
            self._oldest[occupant.request.request_id] = self._policy[0]
        self._sample(logits, slice(first, len(self._table)))

    def _next_batch(self) -> list[Occupant]:
        """Waiting requests that fit the free slots and one prefill pass; equal prompts are counted once."""
        batch: list[Occupant] = []
        prompts: set[tuple[int, ...]] = set()
        longest = 0
        while self._waiting and not self._held and len(self._table) + len(batch) < self._max_slots:
            prompt = self._waiting[0].request.prompt_ids
            longest = max(longest, len(prompt))
            prompts.add(prompt)
            too_large = len(prompts) * longest > MAX_PREFILL_TOKENS
            too_many = len(prompts) ** 2 * self._forward.vocabulary_size > MAX_PREFILL_LOGITS
            if batch and (too_large or too_many):
                break
            batch.append(self._waiting.popleft())
        return batch

    def _step(self) -> None:
        """One token for every live row."""
        if not self._table:
            return
        try:
            logits = self._forward.step(*self._table.inputs())
        except Exception as error:
            # One pass holds all rows, so all of them are lost; the next ones may still work.
            self._report("decode step failed", error, [occupant.deliver for occupant in self._table.occupants])
            while self._table:
                self._remove(len(self._table) - 1)
            return
        self._sample(logits, slice(0, len(self._table)))

    def _sample(self, logits: torch.Tensor, rows: slice) -> None:
        """Draw the rows' next tokens and hand out what is done."""
        tokens, logprobs = self._draw(logits, rows)
        # Descending, so that the row that fills a hole has been looked at already.
        for row in reversed(self._table.record(rows, tokens, logprobs)):
            deliver = self._table.occupants[row].deliver
            if self._table.is_broken(row):
                self._outbox.append((deliver, InternalError("the model answered with non-finite logits")))
                self._forward.scrub(row)
                self._remove(row)
            elif (reason := self._table.end_reason(row)) is not None:
                self._outbox.append((deliver, self._last_chunk(row, reason)))
                self._remove(row)

    def _draw(self, logits: torch.Tensor, rows: slice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Sample all rows at once, or each by itself where numbers must not depend on neighbours."""
        if not self._forward.batch_independent:
            return sample(logits, self._table.sampling(rows))
        drawn = [
            sample(logits[index : index + 1].clone(), self._table.sampling(slice(row, row + 1)))
            for index, row in enumerate(range(rows.start, rows.stop))
        ]
        return np.concatenate([token for token, _ in drawn]), np.concatenate([logprob for _, logprob in drawn])

    def _last_chunk(self, row: int, reason: EndReason) -> TokenChunk:
        """What a finished row has not handed out yet."""
        occupant = self._table.occupants[row]
        all_ids, logprobs = self._table.sampled(row, 0)
        shown = all_ids[:-1] if self._table.ends_with_token(row) else all_ids
        text = cut_at_stop(self._decode(shown.tolist()), occupant.request.sampling.stop)
        start = occupant.num_sent
        return TokenChunk(
            token_ids=all_ids[start:],
            logprobs=logprobs[start:],
            version_spans=occupant.spans(start, len(all_ids)),
            text=occupant.text_stream.finish(text) if occupant.text_stream else text,
            end_reason=reason,
        )

    def _remove(self, row: int) -> None:
        """Free a row."""
        self._oldest.pop(self._table.occupants[row].request.request_id, None)
        self._forward.remove(row, len(self._table) - 1)
        self._table.remove(row)

    def _flush(self) -> None:
        """Hand out what this turn produced."""
        now = time.perf_counter()
        if now - self._streamed_at >= STREAM_SECONDS:
            self._streamed_at = now
            for row, occupant in enumerate(self._table.occupants):
                if occupant.text_stream is not None:
                    self._stream(row, occupant, occupant.text_stream)
        if self._outbox:
            self._post(self._outbox)
            self._outbox = []

    def _stream(self, row: int, occupant: Occupant, text_stream: TextStream) -> None:
        """Deliver a running row's new tokens."""
        token_ids, logprobs = self._table.sampled(row, occupant.num_sent)
        if not len(token_ids):
            return
        start, occupant.num_sent = occupant.num_sent, occupant.num_sent + len(token_ids)
        chunk = TokenChunk(
            token_ids=token_ids,
            logprobs=logprobs,
            version_spans=occupant.spans(start, occupant.num_sent),
            text=text_stream.push(token_ids.tolist()),
            end_reason=None,
        )
        self._outbox.append((occupant.deliver, chunk))

    def _abort(self, request_id: str) -> None:
        """Forget a request, waiting or running."""
        self._waiting = deque(occupant for occupant in self._waiting if occupant.request.request_id != request_id)
        for row, occupant in enumerate(self._table.occupants):
            if occupant.request.request_id == request_id:
                self._remove(row)
                return

    def _report(self, what: str, error: Exception, delivers: list[Deliver]) -> None:
        """Log a failed pass and tell everybody it concerns."""
        logger.error("%s for %d requests", what, len(delivers), exc_info=error)
        failure = InternalError(f"{what}: {type(error).__name__}; see the replica's log")
        self._outbox.extend((deliver, failure) for deliver in delivers)

    def _end(self, failure: HeadraceError) -> None:
        """Answer everything that is held, and refuse what still comes."""
        with self._changed:
            self._failure = failure
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        held = [*self._table.occupants, *self._waiting]
        self._outbox.extend((occupant.deliver, failure) for occupant in held)
        self._waiting.clear()
        self._oldest.clear()
        if self._adoption is not None and self._adoption.done.set_running_or_notify_cancel():
            self._adoption.done.set_exception(failure)
        self._post(self._outbox)
        self._outbox = []
