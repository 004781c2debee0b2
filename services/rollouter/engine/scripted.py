"""The scripted engine: texts and timings from a file, no model, no torch.

A selectable product, for developing agents and scorers without a model and for measuring the rest of the system: it
costs almost nothing, and takes exactly the time the script says. Guarantees: the same request gives the same tokens;
tokens carry the version that was adopted when they were due; requests beyond `max_slots` wait.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.common.errors import ConflictError, OverloadedError, UnavailableError
from services.rollouter.engine.port import MAX_WAITING, NO_VERSION, STREAM_SECONDS, Generation, check_request
from services.rollouter.engine.script import VOCABULARY_SIZE, Play, bytes_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import torch

    from services.common.config.serving import EngineSection
    from services.common.types import Message
    from services.rollouter.engine.port import GenerationRequest, TokenChunk
    from services.rollouter.engine.script import Script


class ScriptedEngine:
    """Plays a script behind the `Engine` port.

    Example: `ScriptedEngine(EngineSection(kind="scripted"), Script(seconds_per_token=0.05))`.
    """

    def __init__(self, engine: EngineSection, script: Script) -> None:
        """Remember the script."""
        self._script = script
        self._max_slots = engine.max_slots
        self._context_length = min(script.context_length, engine.max_context or script.context_length)
        self._policy = (NO_VERSION, "")
        self._held: set[str] = set()
        self._running: dict[str, Play] = {}
        self._changed = asyncio.Condition()
        self._stopped = asyncio.Event()
        self._holding = False
        self._adopting = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        """Version that samples now."""
        return self._policy[0]

    @property
    def policy_digest(self) -> str:
        """Digest of that version."""
        return self._policy[1]

    @property
    def busy_slots(self) -> int:
        """Requests held."""
        return len(self._held)

    @property
    def max_slots(self) -> int:
        """Requests that run at once."""
        return self._max_slots

    @property
    def context_length(self) -> int:
        """Most bytes of a sequence."""
        return self._context_length

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Fail what is held."""
        self._stopped.set()
        async with self._changed:
            self._changed.notify_all()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Play one completion; see the port."""
        async with aclosing(self._chunks(request, live=False)) as chunks:
            chunk = await anext(chunks)
        assert chunk.end_reason is not None, "the only chunk is the last one"
        return Generation(
            token_ids=chunk.token_ids,
            logprobs=chunk.logprobs,
            version_spans=chunk.version_spans,
            end_reason=chunk.end_reason,
            text=chunk.text,
        )

    def stream(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Play one completion and yield it while it grows; see the port."""
        return self._chunks(request, live=True)

    async def _chunks(self, request: GenerationRequest, *, live: bool) -> AsyncGenerator[TokenChunk, None]:
        """Hold a request from its arrival to its last chunk."""
        check_request(request, context_length=self._context_length, vocabulary_size=VOCABULARY_SIZE)
        if request.request_id in self._held:
            raise ConflictError(f"a request {request.request_id!r} is already held; give each call its own id")
        if len(self._held) >= self._max_slots + MAX_WAITING:
            bound = self._max_slots + MAX_WAITING
            raise OverloadedError(f"{len(self._held)} of {bound} requests are held; retry later")
        self._held.add(request.request_id)
        try:
            play = await self._admit(request)
            clock = asyncio.get_running_loop().time
            sent = 0
            while sent < len(play.tokens):
                await self._sleep_until(min(play.end_time, clock() + STREAM_SECONDS) if live else play.end_time)
                due = play.num_due(clock())
                if due > sent and (live or due == len(play.tokens)):
                    yield play.chunk(sent, due)
                    sent = due
        finally:
            self._held.discard(request.request_id)
            if self._running.pop(request.request_id, None) is not None:
                async with self._changed:
                    self._changed.notify_all()

    async def _admit(self, request: GenerationRequest) -> Play:
        """Wait for a slot. The caller's deadline bounds the wait."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._stopped.is_set() or (not self._holding and len(self._running) < self._max_slots)
            )
            self._refuse_if_stopped()
            sampling = request.sampling
            play = self._running[request.request_id] = Play(
                self._script,
                request,
                limit=min(sampling.max_new_tokens, self._context_length - len(request.prompt_ids)),
                began=asyncio.get_running_loop().time(),
                version=self._policy[0],
            )
            return play

    async def _sleep_until(self, when: float) -> None:
        """Let time pass, unless the engine stops."""
        try:
            async with asyncio.timeout_at(when):
                await self._stopped.wait()
        except TimeoutError:
            return
        self._refuse_if_stopped()

    def _refuse_if_stopped(self) -> None:
        """A stopped engine answers nothing."""
        if self._stopped.is_set():
            raise UnavailableError("the engine is stopped")

    async def adopt(
        self, version: int, digest: str, tensors: Mapping[str, torch.Tensor], *, keep_running: bool
    ) -> float:
        """Change the version; the tensors are not looked at. See the port."""
        del tensors
        async with self._adopting:
            self._refuse_if_stopped()
            self._holding = not keep_running
            try:
                if not keep_running:
                    async with self._changed:
                        await self._changed.wait_for(lambda: self._stopped.is_set() or not self._running)
                    self._refuse_if_stopped()
                await asyncio.sleep(self._script.adoption_seconds)
                self._policy = (version, digest)
                now = asyncio.get_running_loop().time()
                for play in self._running.values():
                    play.stretches.append((play.num_due(now), version))
            finally:
                self._holding = False
                async with self._changed:
                    self._changed.notify_all()
            return self._script.adoption_seconds

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as bytes."""
        return self.encode("".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant: ")

    def encode(self, text: str) -> tuple[int, ...]:
        """Text as bytes."""
        return tuple(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes as text."""
        return bytes_of(ids).decode(errors="replace")

    def oldest_versions(self) -> dict[str, int]:
        """First version of each running request."""
        return {request_id: play.stretches[0][1] for request_id, play in self._running.items()}
