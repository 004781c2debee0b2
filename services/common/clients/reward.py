"""The typed client of the reward service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.v1 import reward_service_pb2, reward_service_pb2_grpc

from services.common.convert.reward import request_to_proto, scorer_info_from_proto
from services.common.convert.score import score_from_proto
from services.common.errors import (
    DeadlineError,
    HeadraceError,
    OverloadedError,
    ScoringFailedError,
    UnavailableError,
)
from services.common.rpc.retry import retrying
from services.common.types import Failure, FailureReason

if TYPE_CHECKING:
    import grpc

    from services.common.types import Score, ScoreRequest, ScorerInfo

_LIST_TIMEOUT_SECONDS = 5.0
_LEAST_TRY_SECONDS = 0.05


class RewardClient:
    """Asks for scores; repeats a call while the service is away or overloaded, until the deadline.

    Example:
        client = RewardClient(channel)
        score = await client.score(request, timeout_seconds=30.0)
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use a channel of `services.common.rpc.channel`; its owner closes it."""
        self._stub = reward_service_pb2_grpc.RewardServiceStub(channel)  # type: ignore[no-untyped-call]

    async def score(self, request: ScoreRequest, *, timeout_seconds: float, traceparent: str = "") -> Score:
        """Score one completion. Safe to repeat: the same request is scored once.

        Args:
            request: what to score; its `trajectory_id` is the lease id.
            timeout_seconds: how long to wait and retry; more than `reward.timeout_seconds`, or a slow scorer looks
                like a service that is away.
            traceparent: trace context of the trajectory's root span.

        Raises:
            ScoringFailedError: the scorer failed; `failure_of` tells the reason.
            HeadraceError: no score came before the deadline, or the request can never work.
        """
        wire = request_to_proto(request, traceparent=traceparent)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_seconds

        async def call() -> reward_service_pb2.ScoreResponse:
            left = max(_LEAST_TRY_SECONDS, deadline - clock())
            response: reward_service_pb2.ScoreResponse = await self._stub.Score(wire, timeout=left)
            return response

        response = await retrying(call, deadline_seconds=timeout_seconds, what="Score")
        return score_from_proto(response.score)

    async def list_scorers(self, *, timeout_seconds: float = _LIST_TIMEOUT_SECONDS) -> tuple[ScorerInfo, ...]:
        """List the scorers that can be named."""
        response = await self._stub.ListScorers(reward_service_pb2.ListScorersRequest(), timeout=timeout_seconds)
        return tuple(scorer_info_from_proto(info) for info in response.scorers)


def failure_of(error: HeadraceError) -> Failure:
    """Turn what `score` raised into the failure that is put in place of a reward."""
    if isinstance(error, ScoringFailedError):
        reason = FailureReason(error.metadata.get("failure_reason", FailureReason.REWARD_ERROR))
    elif isinstance(error, UnavailableError | DeadlineError | OverloadedError):
        reason = FailureReason.REWARD_UNAVAILABLE
    else:
        reason = FailureReason.REWARD_ERROR
    return Failure(reason=reason, message=error.message)
