"""The gRPC face of the trainer: translates, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import trainer_service_pb2, trainer_service_pb2_grpc

from services.common.convert.trainer import trainer_report_to_proto

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from services.trainer.status import TrainerStatus

    _Context = grpc.aio.ServicerContext[Any, Any]


class TrainerServicer(trainer_service_pb2_grpc.TrainerServiceServicer):
    """Serves `TrainerService`."""

    def __init__(self, status: TrainerStatus, *, stop: Callable[[], None]) -> None:
        """Serve a status.

        Args:
            status: what is reported.
            stop: asks the loop to end after the running step.
        """
        self._status = status
        self._stop = stop

    async def GetStatus(  # noqa: N802 - the proto's name
        self, request: trainer_service_pb2.TrainerServiceGetStatusRequest, context: _Context
    ) -> trainer_service_pb2.TrainerServiceGetStatusResponse:
        """Return where the run stands."""
        del request, context
        return trainer_report_to_proto(self._status.report())

    async def Stop(  # noqa: N802 - the proto's name
        self, request: trainer_service_pb2.StopRequest, context: _Context
    ) -> trainer_service_pb2.StopResponse:
        """Ask the trainer to stop after the running step."""
        del request, context
        self._stop()
        return trainer_service_pb2.StopResponse()
