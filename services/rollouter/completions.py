"""Completions for whoever asks this replica: not a training path, nothing is recorded."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.common.types import CompletionPiece
from services.rollouter.engine.port import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.common.types import Message, SamplingParams
    from services.rollouter.engine.port import Engine


async def stream_completion(
    engine: Engine, messages: tuple[Message, ...], sampling: SamplingParams, *, seed: int
) -> AsyncIterator[CompletionPiece]:
    """Sample one completion and yield it in pieces, each of one policy version; the last one carries the whole text.

    Args:
        engine: samples.
        messages: the prompt.
        sampling: how.
        seed: seed of the sample.
    """
    request = GenerationRequest(
        request_id=f"generate/{secrets.token_hex(8)}",
        prompt_ids=engine.render(messages),
        sampling=sampling,
        seed=seed,
    )
    text = ""
    offset = 0
    async with aclosing(engine.stream(request)) as chunks:
        async for chunk in chunks:
            text += chunk.text
            for span in chunk.version_spans:
                last = chunk.end_reason is not None and span is chunk.version_spans[-1]
                begin, end = span.start - offset, span.end - offset
                yield CompletionPiece(
                    token_ids=tuple(int(token) for token in chunk.token_ids[begin:end]),
                    logprobs=tuple(float(logprob) for logprob in chunk.logprobs[begin:end]),
                    policy_version=span.version,
                    text=text if last else "",
                    end_reason=chunk.end_reason if last else None,
                )
            offset += len(chunk.token_ids)
