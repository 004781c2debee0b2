"""The gRPC face of a rollouter: translates, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import rollouter_service_pb2, rollouter_service_pb2_grpc

from services.common.convert.rollouter import piece_to_proto, status_to_proto
from services.common.convert.task import messages_from_proto, sampling_from_proto
from services.rollouter.completions import stream_completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import grpc

    from services.rollouter.engine.port import Engine
    from services.rollouter.replica import Replica

    _Context = grpc.aio.ServicerContext[Any, Any]


class RollouterServicer(rollouter_service_pb2_grpc.RollouterServiceServicer):
    """Serves `RollouterService`."""

    def __init__(self, engine: Engine, replica: Replica, *, stop: Callable[[], None]) -> None:
        """Serve a replica.

        Args:
            engine: answers Generate.
            replica: answers GetStatus.
            stop: begins the drain and returns at once.
        """
        self._engine = engine
        self._replica = replica
        self._stop = stop

    async def Generate(  # noqa: N802 - the proto's name
        self, request: rollouter_service_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[rollouter_service_pb2.GenerateResponse]:
        """Sample one completion and stream it."""
        del context
        messages, sampling = messages_from_proto(request.messages), sampling_from_proto(request.sampling)
        async for piece in stream_completion(self._engine, messages, sampling, seed=request.seed):
            yield piece_to_proto(piece)

    async def GetStatus(  # noqa: N802 - the proto's name
        self, request: rollouter_service_pb2.RollouterServiceGetStatusRequest, context: _Context
    ) -> rollouter_service_pb2.RollouterServiceGetStatusResponse:
        """Say what the replica is doing."""
        del request, context
        return status_to_proto(self._replica.status())

    async def Drain(  # noqa: N802 - the proto's name
        self, request: rollouter_service_pb2.DrainRequest, context: _Context
    ) -> rollouter_service_pb2.DrainResponse:
        """Begin to drain; the process exits when it is done."""
        del request, context
        self._stop()
        return rollouter_service_pb2.DrainResponse()
