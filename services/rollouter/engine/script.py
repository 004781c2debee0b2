"""Scripts of the scripted engine: what it answers, and how long that takes.

A script is TOML or JSON:

    seconds_per_token = 0.05
    prefill_seconds = 0.2
    default_replies = ["I do not know."]

    [[rules]]
    match = "what is 1 plus 2"
    replies = ["3", "it is 3"]
    num_tokens = [16, 128]

Text is bytes: a token id below 256 is a byte, 256 ends a completion.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from services.common.config.base import Section
from services.common.errors import ConfigError
from services.common.types import EndReason, VersionSpan
from services.rollouter.engine.port import TokenChunk
from services.rollouter.engine.randomness import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.rollouter.engine.port import GenerationRequest

END_ID = 256
"""The end token; ids below it are bytes."""
VOCABULARY_SIZE = 257
"""Token ids are below it."""


class ScriptRule(Section):
    """What to answer to prompts of one kind."""

    match: str = ""
    """Regular expression searched in the prompt's text; empty matches every prompt."""
    replies: tuple[str, ...] = Field(min_length=1)
    """Answers; the request's seed picks one."""
    num_tokens: tuple[int, int] | None = None
    """Least and most tokens of an answer, end token included; the seed picks a number and spaces fill the answer up."""

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        """A pattern must compile."""
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        """The range must hold at least one number."""
        if self.num_tokens is not None and not 1 <= self.num_tokens[0] <= self.num_tokens[1]:
            raise ValueError(f"num_tokens is {self.num_tokens}; give the least and the most, both at least 1")
        return self


class Script(Section):
    """Texts and timings of a scripted engine.

    Example: `Script(seconds_per_token=0.05, default_replies=("42",))`.
    """

    seconds_per_token: float = Field(default=0.0, ge=0.0)
    """Time of one token of one request, whatever else runs."""
    prefill_seconds: float = Field(default=0.0, ge=0.0)
    """Time before the first token."""
    adoption_seconds: float = Field(default=0.0, ge=0.0)
    """Pause of a weight swap."""
    context_length: int = Field(default=8192, ge=2)
    """Most bytes of a prompt and its completion."""
    logprob: float = Field(default=-0.1, le=0.0)
    """Log-probability of every token."""
    rules: tuple[ScriptRule, ...] = ()
    """Tried in order."""
    default_replies: tuple[str, ...] = Field(default=("ok",), min_length=1)
    """Answers where no rule matches."""


def load_script(path: str) -> Script:
    """Read a TOML or JSON script.

    Raises:
        ConfigError: it cannot be read or says something wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
        return Script.model_validate(data)
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"engine.script is {path!r}: {error}") from error


class Play:
    """One running request: its tokens are known, time reveals them.

    Example: `Play(script, request, limit=64, began=loop.time(), version=3).num_due(loop.time())`.
    """

    def __init__(self, script: Script, request: GenerationRequest, *, limit: int, began: float, version: int) -> None:
        """Begin.

        Args:
            script: what to play.
            request: for whom.
            limit: most tokens.
            began: now, by the clock that `num_due` is asked with.
            version: the policy version of the first tokens.
        """
        self._began = began + script.prefill_seconds
        self._seconds_per_token = script.seconds_per_token
        self._logprob = script.logprob
        self.tokens, self.text, self.end_reason = _act(script, request, limit)
        self.stretches = [(0, version)]

    @property
    def end_time(self) -> float:
        """When the last token is due."""
        return self._began + len(self.tokens) * self._seconds_per_token

    def num_due(self, now: float) -> int:
        """Tokens sampled by now."""
        if now >= self.end_time:
            return len(self.tokens)
        return max(0, int((now - self._began) / self._seconds_per_token))

    def chunk(self, start: int, end: int) -> TokenChunk:
        """Tokens `start` to `end`."""
        spans = []
        firsts = [first for first, _ in self.stretches]
        for (first, version), bound in zip(self.stretches, [*firsts[1:], end], strict=True):
            span = VersionSpan(start=max(first, start), end=min(bound, end), version=version)
            if span.start < span.end:
                spans.append(span)
        done = end == len(self.tokens)
        # Whole characters only: what a cut character has shown of itself comes with its last byte.
        shown = self.text.encode()
        piece = shown[: None if done else end].decode(errors="ignore")[len(shown[:start].decode(errors="ignore")) :]
        return TokenChunk(
            token_ids=np.array(self.tokens[start:end], dtype=np.int32),
            logprobs=np.full(end - start, self._logprob, dtype=np.float32),
            version_spans=tuple(spans),
            text=piece,
            end_reason=self.end_reason if done else None,
        )


def _act(script: Script, request: GenerationRequest, limit: int) -> tuple[list[int], str, EndReason]:
    """The request's tokens, its text, and why it ends."""
    position = len(request.prompt_ids)
    seeds = np.array([request.seed, request.seed], dtype=np.uint64)
    pick, length = uniforms(seeds, np.array([position, position + 1]))
    prompt = bytes_of(request.prompt_ids).decode(errors="replace")
    rule = next((rule for rule in script.rules if re.search(rule.match, prompt)), None)
    replies = rule.replies if rule else script.default_replies
    content = replies[int(pick * len(replies))].encode()
    if rule is not None and rule.num_tokens is not None:
        least, most = rule.num_tokens
        size = least + int(length * (most - least + 1)) - 1
        content = content[:size].ljust(size)
    tokens = [*content, END_ID]
    ends = [place + len(text.encode()) for text in request.sampling.stop if (place := content.find(text.encode())) >= 0]
    ends += [index + 1 for index, token in enumerate(tokens) if token in request.sampling.stop_token_ids]
    reason = EndReason.STOP
    tokens = tokens[: min(ends, default=len(tokens))]
    if len(tokens) > limit:
        tokens, reason = tokens[:limit], EndReason.LENGTH
    text = bytes_of(tokens).decode(errors="ignore")
    places = [place for place in (text.find(stop) for stop in request.sampling.stop) if place >= 0]
    return tokens, text[: min(places, default=len(text))], reason


def bytes_of(ids: Sequence[int]) -> bytes:
    """The bytes among token ids."""
    return bytes(token for token in ids if token < END_ID)
