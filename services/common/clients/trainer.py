"""The typed client of the trainer service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import trainer_service_pb2, trainer_service_pb2_grpc

from services.common.convert.trainer import trainer_report_from_proto

if TYPE_CHECKING:
    import grpc

    from services.common.types import TrainerReport

_CALL_SECONDS = 10.0


class TrainerClient:
    """Watches and steers a trainer.

    Example:
        trainer = TrainerClient(open_channel("127.0.0.1:50053"))
        print((await trainer.get_status()).step)
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use a channel of `services.common.rpc.channel`; its owner closes it."""
        self._stub: Any = trainer_service_pb2_grpc.TrainerServiceStub(channel)  # type: ignore[no-untyped-call]

    async def get_status(self) -> TrainerReport:
        """Return where the run stands. Safe to retry."""
        request = trainer_service_pb2.TrainerServiceGetStatusRequest()
        return trainer_report_from_proto(await self._stub.GetStatus(request, timeout=_CALL_SECONDS))

    async def stop(self) -> None:
        """Ask the trainer to stop after the running step, with a checkpoint and a commit. Safe to retry."""
        await self._stub.Stop(trainer_service_pb2.StopRequest(), timeout=_CALL_SECONDS)
