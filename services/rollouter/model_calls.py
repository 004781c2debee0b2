"""The engine as one attempt sees it: each call is a span, a clock and a check; its failures have names.

Owns which versions an attempt has used, so that one that can no longer be in time is noticed while it runs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from services.common.errors import HeadraceError, InternalError, InvalidInputError
from services.common.telemetry import names, trace
from services.common.types import Failure, FailureReason
from services.rollouter.agents.port import AttemptFailedError
from services.rollouter.engine.port import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span

    from services.common.types import Assignment, Message, ReplicaId, SamplingParams
    from services.rollouter.engine.port import Engine, Generation


class ModelCalls:
    """Implements the `Model` port for one attempt.

    Example: `attempt = await agent.run(task, key, ModelCalls(engine, assignment, replica_id=r, adoption_time=when))`.
    """

    def __init__(
        self,
        engine: Engine,
        assignment: Assignment,
        *,
        replica_id: ReplicaId,
        adoption_time: Callable[[int], float | None],
    ) -> None:
        """Prepare for an attempt.

        Args:
            engine: answers the calls.
            assignment: what is attempted.
            replica_id: who attempts it.
            adoption_time: when this replica adopted a version, seconds since the epoch, for the span's events.
        """
        self._engine = engine
        self._assignment = assignment
        self._replica_id = replica_id
        self._adoption_time = adoption_time
        self._num_calls = 0
        self._running_id = ""
        self._oldest_finished: int | None = None
        self.generate_seconds = 0.0
        """Seconds spent in calls so far."""
        self.num_tokens = 0
        """Tokens sampled so far."""

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._engine.context_length

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as token ids, ready for the assistant's turn."""
        with _engine_errors():
            return self._engine.render(messages)

    def oldest_version(self, running: Mapping[str, int]) -> int | None:
        """Smallest version sampled so far; None before the first token.

        Args:
            running: `Engine.oldest_versions()`.
        """
        known = [version for version in (self._oldest_finished, running.get(self._running_id)) if version is not None]
        return min(known, default=None)

    async def generate(self, prompt_ids: tuple[int, ...], *, sampling: SamplingParams, seed: int) -> Generation:
        """Sample one completion under a `generate` span.

        Raises:
            AttemptFailedError: the prompt leaves no room, the engine failed, or its answer does not add up.
        """
        self._running_id = f"{self._assignment.lease_id}#{self._num_calls}"
        self._num_calls += 1
        request = GenerationRequest(request_id=self._running_id, prompt_ids=prompt_ids, sampling=sampling, seed=seed)
        clock = asyncio.get_running_loop().time
        started = clock()
        with trace.start_span(
            names.SPAN_GENERATE,
            parent=self._assignment.traceparent,
            attributes={
                names.OPERATION_NAME: "chat",
                names.REPLICA_ID: self._replica_id,
                names.REQUEST_MAX_TOKENS: sampling.max_new_tokens,
                names.REQUEST_TEMPERATURE: sampling.temperature,
                names.USAGE_INPUT_TOKENS: len(prompt_ids),
            },
        ) as span:
            try:
                with _engine_errors():
                    generation = await self._engine.generate(request)
                    _check(generation)
            finally:
                self.generate_seconds += clock() - started
                self._running_id = ""
            self._describe(span, generation)
        self.num_tokens += len(generation.token_ids)
        oldest = min(part.version for part in generation.version_spans)
        self._oldest_finished = oldest if self._oldest_finished is None else min(self._oldest_finished, oldest)
        return generation

    def _describe(self, span: Span, generation: Generation) -> None:
        """Put on the span what was sampled, and an event for each adoption in between."""
        versions = [part.version for part in generation.version_spans]
        span.set_attribute(names.USAGE_OUTPUT_TOKENS, len(generation.token_ids))
        span.set_attribute(names.RESPONSE_FINISH_REASONS, [generation.end_reason])
        span.set_attribute(names.POLICY_VERSION_OLDEST, min(versions))
        span.set_attribute(names.POLICY_VERSION_NEWEST, max(versions))
        for version in versions[1:]:
            seconds = self._adoption_time(version) or time.time()
            span.add_event(names.EVENT_ADOPTION, {names.POLICY_VERSION: version}, timestamp=int(seconds * 1e9))


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Give failures of the engine their names; anything else it raises is a failure of the engine too."""
    try:
        yield
    except InvalidInputError as error:
        raise AttemptFailedError(Failure(reason=FailureReason.PROMPT_TOO_LONG, message=error.message)) from error
    except HeadraceError as error:
        raise AttemptFailedError(Failure(reason=FailureReason.ENGINE_ERROR, message=error.message)) from error
    except Exception as error:
        message = f"the engine raised {type(error).__name__}: {error}"
        raise AttemptFailedError(Failure(reason=FailureReason.ENGINE_ERROR, message=message)) from error


def _check(generation: Generation) -> None:
    """Refuse an answer whose parts contradict each other; it must never be trained on."""
    num_tokens = len(generation.token_ids)
    covered = 0
    for part in generation.version_spans:
        if part.start != covered or part.end <= part.start:
            raise InternalError(f"version spans {generation.version_spans} do not cover the {num_tokens} tokens once")
        covered = part.end
    if not num_tokens == len(generation.logprobs) == covered or num_tokens == 0:
        raise InternalError(
            f"the engine returned {num_tokens} tokens, {len(generation.logprobs)} log-probs and versions for {covered}"
        )
    if not np.isfinite(generation.logprobs).all():
        raise InternalError("the engine returned a log-probability that is not finite")
