"""The engine port: what the rest of the rollouter needs from whatever samples tokens.

Owns the words; knows no model, no gRPC. An engine holds `max_slots` requests at once, samples each token under exactly
one policy version and says which, and changes version atomically between two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.common.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from services.common.types import EndReason, Message, SamplingParams, VersionSpan

NO_VERSION = -1
"""The policy version of weights that no trainer has numbered: those the engine started with."""
MAX_WAITING = 4096
"""Requests that may wait for a slot of one engine; the next one is refused."""
STREAM_SECONDS = 0.02
"""Streamed requests are told about new tokens this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One model call.

    Example: `GenerationRequest(request_id="train/00000012/0/3#0", prompt_ids=engine.render(messages),
    sampling=SamplingParams(max_new_tokens=64), seed=7)`.
    """

    request_id: str
    """Unique among the requests the engine holds."""
    prompt_ids: tuple[int, ...]
    """The whole history as token ids, at least one and fewer than the engine's context."""
    sampling: SamplingParams
    """How to sample."""
    seed: int
    """Unsigned 63-bit seed; with the token's position in the sequence it fixes the randomness of that token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenChunk:
    """A stretch of a completion, in order; the last chunk of a stream carries the end reason."""

    token_ids: NDArray[np.int32]
    """`[N]` sampled ids, the end token included."""
    logprobs: NDArray[np.float32]
    """`[N]` log-probabilities under the distribution the tokens were drawn from; 0 for greedy tokens."""
    version_spans: tuple[VersionSpan, ...]
    """Who sampled what; indices count from the start of the completion."""
    text: str
    """Text that has become certain with this chunk, without special tokens and without a stop string."""
    end_reason: EndReason | None
    """Why the completion ended; `None` while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """A finished completion of `N` tokens."""

    token_ids: NDArray[np.int32]
    """`[N]` all sampled ids, the end token included, since it is trained too."""
    logprobs: NDArray[np.float32]
    """`[N]` log-probabilities under the distribution the tokens were drawn from (after temperature, top-k and top-p).
    A greedy token has probability one there, hence log-probability 0."""
    version_spans: tuple[VersionSpan, ...]
    """Which version sampled which tokens; indices count from the start of the completion and cover it."""
    end_reason: EndReason
    """`stop` for an end token or stop string, `length` for the token limit or the context."""
    text: str
    """The decoded text, without special tokens and without what follows from the stop string on."""


class Engine(Protocol):
    """Samples completions under versioned weights.

    Example:
        engine = build_engine(config.engine, config.model)
        await engine.start()
        generation = await engine.generate(request)
        await engine.stop()
    """

    @property
    def policy_version(self) -> int:
        """Version that samples now; `NO_VERSION` before the first adoption."""
        ...

    @property
    def policy_digest(self) -> str:
        """Digest of the adopted version; empty before the first adoption."""
        ...

    @property
    def busy_slots(self) -> int:
        """Requests held: running and waiting for a slot."""
        ...

    @property
    def max_slots(self) -> int:
        """Requests that can run at once."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        ...

    async def start(self) -> None:
        """Load what is needed and become ready."""
        ...

    async def stop(self) -> None:
        """Fail what is still held with `UnavailableError` and free everything."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one completion. Cancelling the call frees its slot before the next token.

        Raises:
            InvalidInputError: the prompt is empty or leaves no room for one token.
            ConflictError: a request of that id is already held.
            OverloadedError: too many requests wait for a slot.
            InternalError: the model failed or answered with non-finite numbers.
            UnavailableError: the engine is stopped.
        """
        ...

    def stream(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Sample one completion and yield it while it grows; closing the generator frees the slot.

        Raises:
            HeadraceError: as `generate` does.
        """
        ...

    async def adopt(
        self, version: int, digest: str, tensors: Mapping[str, torch.Tensor], *, keep_running: bool
    ) -> float:
        """Switch to another policy version, atomically between two decode steps.

        Args:
            version: number of the new version.
            digest: digest of its content.
            tensors: all weights by state-dict name, tied names left out. The engine may keep them: do not write to
                them afterwards.
            keep_running: running requests go on under the new weights with their attention cache kept. Otherwise no
                request starts from the call on, and the switch waits until the running ones are done.

        Returns:
            Seconds in which no token could be sampled, without any waiting for running requests.

        Raises:
            CorruptDataError: names or shapes do not fit; the old version goes on serving.
        """
        ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as token ids, ready for the assistant's turn."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Plain text as token ids, without any special tokens added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as text, without special tokens."""
        ...

    def oldest_versions(self) -> dict[str, int]:
        """For each running request the version that sampled its first token."""
        ...


def check_request(request: GenerationRequest, *, context_length: int, vocabulary_size: int) -> None:
    """Refuse a request that can never work.

    Args:
        request: what was asked.
        context_length: most tokens a prompt and its completion may have together.
        vocabulary_size: token ids are below it.

    Raises:
        InvalidInputError: with the value, the bound and what to do.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if not 0 < len(prompt) < context_length:
        raise InvalidInputError(
            f"the prompt has {len(prompt)} tokens and the context {context_length}; "
            "a prompt needs at least one token and must leave room for one new one"
        )
    if not 0 <= min(prompt) <= max(prompt) < vocabulary_size:
        raise InvalidInputError(
            f"the prompt holds token ids from {min(prompt)} to {max(prompt)}; "
            f"the model knows 0 to {vocabulary_size - 1}"
        )
    if sampling.max_new_tokens < 1:
        raise InvalidInputError(f"max_new_tokens is {sampling.max_new_tokens}; ask for at least 1")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise InvalidInputError(
            f"temperature is {sampling.temperature} (>= 0), top_p {sampling.top_p} (in (0, 1]), "
            f"top_k {sampling.top_k} (>= 0); bring them into their bounds"
        )
    if "" in sampling.stop:
        raise InvalidInputError("one of the stop strings is empty; leave it out")
    if not 0 <= request.seed < 2**64:
        raise InvalidInputError(f"the seed is {request.seed}; it must fit 64 bits without sign")
