"""The score desk: who may ask for what, and one answer per trajectory however often it is asked.

Owns the answers of the last trajectories. Guarantees: the same id with the same content is scored once and answered the
same, also while it is still running; other content is refused; a failure is never a reward.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import (
    ConflictError,
    DeadlineError,
    InvalidInputError,
    ScoringFailedError,
    UnavailableError,
)
from services.common.scoring import require_allowed
from services.common.types import Failure, Score
from services.reward.frames import encode_frame
from services.reward.scorers.registry import usable_builtins

if TYPE_CHECKING:
    from services.common.types import ScoreRequest, ScorerInfo
    from services.reward.config import ServiceConfig
    from services.reward.pool import Job, WorkerPool

_LARGE_CHARACTERS = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one trajectory."""

    digest: bytes
    """Names the content it was asked with."""
    job: Job
    """Its score, or the score that will come."""
    info: ScorerInfo
    """The scorer."""


class ScoreDesk:
    """Takes requests, joins repeated ones, and turns outcomes into scores or errors."""

    def __init__(self, config: ServiceConfig, pool: WorkerPool) -> None:
        """Use `pool` for all scoring."""
        self._config = config
        self._pool = pool
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._infos: dict[str, ScorerInfo] = {}

    async def start(self) -> None:
        """Warm the workers up; nothing is scored before."""
        loaded = await self._pool.start()
        self._infos = {info.name: info for info in (*usable_builtins(self._config.options), *loaded)}

    def list_scorers(self) -> tuple[ScorerInfo, ...]:
        """Describe the scorers that can be named here."""
        return tuple(self._infos.values())

    async def score(self, request: ScoreRequest, *, timeout_seconds: float) -> Score:
        """Score one completion, or return what the same request got before.

        Raises:
            NotFoundError: the scorer is not one that may be named.
            ConflictError: the id came before with other content.
            OverloadedError: too many scores wait.
            ScoringFailedError: the scorer failed; `failure_reason` says how.
            DeadlineError: `timeout_seconds` went by; what runs goes on, and a retry gets it.
            UnavailableError: the service is starting or stopping.
        """
        entry = await self._admitted(request)
        job = entry.job
        job.waiters += 1
        try:
            done, _ = await asyncio.wait({job.outcome}, timeout=timeout_seconds)
        finally:
            job.waiters -= 1
            if job.waiters == 0:
                self._pool.abandon(job)
        if not done:
            raise DeadlineError(
                f"no score within {timeout_seconds:.1f} s with {self._pool.pending} waiting or running; "
                "retry, or raise reward.workers"
            )
        if job.outcome.cancelled():
            raise UnavailableError("the reward service is stopping; retry")
        outcome = job.outcome.result()
        if isinstance(outcome, Failure):
            raise ScoringFailedError(outcome.message, failure_reason=outcome.reason.value)
        return Score(
            reward=outcome.reward,
            parts=dict(outcome.parts),
            scorer=entry.info.name,
            scorer_version=entry.info.version,
        )

    async def _admitted(self, request: ScoreRequest) -> _Entry:
        """Find the entry of an id that was seen before, or put a new request into the line."""
        info = self._scorer(request.scoring.scorer or self._config.options.scorer)
        if not request.run_id or not request.trajectory_id:
            raise InvalidInputError("run_id and trajectory_id must not be empty; they name the score")
        frame = await _encoded(request, scorer=info.name)
        digest = hashlib.blake2b(frame, digest_size=16).digest()
        key = (request.run_id, request.trajectory_id)
        known = self._entries.get(key)
        if known is not None and not known.job.outcome.cancelled():
            if known.digest != digest:
                raise ConflictError(f"trajectory {request.trajectory_id[:200]!r} was scored before with other content")
            self._entries.move_to_end(key)
            return known
        entry = _Entry(digest, self._pool.submit(frame), info)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._forget_oldest()
        return entry

    def _scorer(self, name: str) -> ScorerInfo:
        """Return the scorer called `name`, if a request may name it."""
        if not self._infos:
            raise UnavailableError("the reward service is still starting; retry")
        require_allowed(name, known=self._infos.keys())
        return self._infos[name]

    def _forget_oldest(self) -> None:
        """Keep the number of remembered answers within its bound; what is still wanted stays."""
        excess = len(self._entries) - self._config.max_remembered
        if excess > 0:
            oldest = list(itertools.islice(self._entries, excess))
            for key in oldest:
                if self._entries[key].job.outcome.done():
                    del self._entries[key]


async def _encoded(request: ScoreRequest, *, scorer: str) -> bytes:
    """Write the request for a worker; equal requests give equal bytes. Large ones are written beside the event loop."""
    payload = {
        "scorer": scorer,
        "completion": request.completion,
        "answer": request.scoring.answer,
        "metadata_json": request.scoring.metadata_json,
        "messages": [[message.role, message.content] for message in request.messages],
    }
    size = len(request.completion) + len(request.scoring.metadata_json) + sum(len(m.content) for m in request.messages)
    return encode_frame(payload) if size < _LARGE_CHARACTERS else await asyncio.to_thread(encode_frame, payload)
