"""The gRPC face of the score desk: translates, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import reward_service_pb2, reward_service_pb2_grpc

from services.common.convert.reward import request_from_proto, scorer_info_to_proto
from services.common.convert.score import score_to_proto

if TYPE_CHECKING:
    import grpc

    from services.reward.desk import ScoreDesk

_DEFAULT_TIMEOUT_SECONDS = 30.0


class RewardServicer(reward_service_pb2_grpc.RewardServiceServicer):
    """Serves `RewardService`."""

    def __init__(self, desk: ScoreDesk) -> None:
        """Serve `desk`."""
        self._desk = desk

    async def Score(  # noqa: N802 - the proto's name
        self, request: reward_service_pb2.ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> reward_service_pb2.ScoreResponse:
        """Score one completion within the caller's deadline."""
        remaining = context.time_remaining()
        score = await self._desk.score(
            request_from_proto(request),
            timeout_seconds=_DEFAULT_TIMEOUT_SECONDS if remaining is None else remaining,
        )
        return reward_service_pb2.ScoreResponse(score=score_to_proto(score))

    async def ListScorers(  # noqa: N802 - the proto's name
        self, request: reward_service_pb2.ListScorersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> reward_service_pb2.ListScorersResponse:
        """List the scorers that can be named."""
        del request, context
        infos = self._desk.list_scorers()
        return reward_service_pb2.ListScorersResponse(scorers=[scorer_info_to_proto(info) for info in infos])
