"""The engine that decodes any causal language model of transformers, many requests at a time, in a thread of its own.

Owns the seam between the event loop and the decode thread. Guarantees of the `Engine` port hold; with `deterministic`
a request's numbers are the same bits alone or in company.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.common.errors import ConflictError, HeadraceError, OverloadedError, UnavailableError
from services.rollouter.engine.decode_loop import DecodeLoop
from services.rollouter.engine.forward import SequentialForward
from services.rollouter.engine.lean_forward import LeanForward
from services.rollouter.engine.port import MAX_WAITING, NO_VERSION, Generation, check_request
from services.rollouter.engine.served_model import ServedModel, load_served_model
from services.rollouter.engine.slot_forward import SlotForward, fits
from services.rollouter.engine.slots import SlotTable
from services.rollouter.engine.weight_swap import WeightSwap, release

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import torch

    from services.common.config.learning import ModelSection
    from services.common.config.serving import EngineSection
    from services.common.types import Message
    from services.rollouter.engine.forward import Forward
    from services.rollouter.engine.port import GenerationRequest, TokenChunk
    from services.rollouter.engine.slots import Deliver

logger = logging.getLogger(__name__)


class TransformersEngine:
    """Decodes with transformers' own forward pass and slots that join and leave between steps.

    Example:
        engine = TransformersEngine(EngineSection(), ModelSection(path="models/tiny"))
        await engine.start()
        generation = await engine.generate(request)
        await engine.stop()
    """

    def __init__(self, engine: EngineSection, model: ModelSection) -> None:
        """Remember the config; `start` loads."""
        self._config = engine
        self._model_config = model
        self._loaded: ServedModel | None = None
        self._decode_loop: DecodeLoop | None = None
        self._swap: WeightSwap | None = None
        self._held: set[str] = set()
        self._adopting = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        """Version that samples now."""
        return self._decode_loop.policy[0] if self._decode_loop else NO_VERSION

    @property
    def policy_digest(self) -> str:
        """Digest of that version."""
        return self._decode_loop.policy[1] if self._decode_loop else ""

    @property
    def busy_slots(self) -> int:
        """Requests held."""
        return len(self._held)

    @property
    def max_slots(self) -> int:
        """Requests that run at once."""
        return self._config.max_slots

    @property
    def context_length(self) -> int:
        """Most tokens of a sequence."""
        return self._model.context_length

    @property
    def _model(self) -> ServedModel:
        """The loaded model."""
        if self._loaded is None:
            raise UnavailableError("the engine is not started")
        return self._loaded

    async def start(self) -> None:
        """Load the model beside the event loop and start the decode thread."""
        event_loop = asyncio.get_running_loop()

        def post(items: list[tuple[Deliver, TokenChunk | HeadraceError]]) -> None:
            if items and not event_loop.is_closed():
                event_loop.call_soon_threadsafe(_hand_out, items)

        self._loaded = await asyncio.to_thread(load_served_model, self._model_config, self._config)
        forward = await asyncio.to_thread(self._choose_forward, self._loaded)
        self._swap = WeightSwap(self._loaded.model)
        self._decode_loop = DecodeLoop(
            forward=forward,
            table=SlotTable(
                max_slots=self._config.max_slots,
                context_length=self._loaded.context_length,
                end_ids=self._loaded.end_ids,
                vocabulary_size=forward.vocabulary_size,
            ),
            decode=self._loaded.tokenizer.decode,
            post=post,
            max_slots=self._config.max_slots,
            # The split of a sum over threads decides its rounding, so a deterministic engine fixes it.
            threads=(self._config.threads or 1) if self._config.deterministic else self._config.threads,
        )
        self._decode_loop.start()

    def _choose_forward(self, loaded: ServedModel) -> Forward:
        """The fastest passes that give the model's own numbers; one sequence at a time always does."""
        if self._config.deterministic:
            return SequentialForward(loaded.model)
        for kind in (LeanForward, SlotForward):
            if fits(kind, loaded.model):
                return kind(loaded.model, max_columns=loaded.context_length)
        logger.warning("%s cannot share a batch; decoding one sequence at a time", type(loaded.model).__name__)
        return SequentialForward(loaded.model)

    async def stop(self) -> None:
        """End the decode thread; what is held fails with `UnavailableError`."""
        if self._decode_loop is not None:
            await asyncio.to_thread(self._decode_loop.stop)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one completion; see the port."""
        # A request that is not live has exactly one chunk.
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
        """Sample one completion and yield it while it grows; see the port."""
        return self._chunks(request, live=True)

    async def _chunks(self, request: GenerationRequest, *, live: bool) -> AsyncGenerator[TokenChunk, None]:
        """Hold a request from its submission to its last chunk."""
        model = self._model
        check_request(
            request,
            context_length=model.context_length,
            vocabulary_size=int(model.model.get_input_embeddings().num_embeddings),
        )
        if request.request_id in self._held:
            raise ConflictError(f"a request {request.request_id!r} is already held; give each call its own id")
        if len(self._held) >= self.max_slots + MAX_WAITING:
            raise OverloadedError(f"{len(self._held)} of {self.max_slots + MAX_WAITING} requests are held; retry later")
        assert self._decode_loop is not None, "a loaded model has a decode loop"
        # Every chunk has a token of its own, and one error may follow.
        inbox: asyncio.Queue[TokenChunk | HeadraceError] = asyncio.Queue(request.sampling.max_new_tokens + 1)
        ended = False
        self._held.add(request.request_id)
        try:
            self._decode_loop.submit(request, deliver=inbox.put_nowait, live=live)
            while not ended:
                item = await inbox.get()
                ended = isinstance(item, HeadraceError) or item.end_reason is not None
                if isinstance(item, HeadraceError):
                    raise item
                yield item
        finally:
            self._held.discard(request.request_id)
            if not ended:
                self._decode_loop.abort(request.request_id)

    async def adopt(
        self, version: int, digest: str, tensors: Mapping[str, torch.Tensor], *, keep_running: bool
    ) -> float:
        """Switch weights between two steps; see the port."""
        async with self._adopting:
            if self._decode_loop is None or self._swap is None:
                raise UnavailableError("the engine is not started")
            swapped = False
            if not keep_running:
                self._decode_loop.hold()
            try:
                prepared = await asyncio.to_thread(self._swap.prepare, tensors)
                done = self._decode_loop.adopt(prepared, version, digest, keep_running=keep_running)
                result = await asyncio.wrap_future(done)
                swapped = True
            finally:
                if not swapped:
                    self._decode_loop.release()
            await asyncio.to_thread(release, result.old)
            return result.pause_seconds

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as token ids."""
        return self._model.tokenizer.render(messages)

    def encode(self, text: str) -> tuple[int, ...]:
        """Text as token ids."""
        return self._model.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as text."""
        return self._model.tokenizer.decode(ids)

    def oldest_versions(self) -> dict[str, int]:
        """First version of each running request."""
        return self._decode_loop.oldest_versions() if self._decode_loop else {}


def _hand_out(items: list[tuple[Deliver, TokenChunk | HeadraceError]]) -> None:
    """Deliver one turn's results, on the event loop."""
    for deliver, item in items:
        deliver(item)
