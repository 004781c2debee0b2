"""The typed client of a rollouter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import rollouter_service_pb2, rollouter_service_pb2_grpc

from services.common.convert.rollouter import generate_request, piece_from_proto, status_from_proto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from services.common.types import CompletionPiece, Message, ReplicaStatus, SamplingParams

_CALL_SECONDS = 10.0
_GENERATE_SECONDS = 600.0


class RollouterClient:
    """Asks one replica.

    Example:
        client = RollouterClient(channel)
        async for piece in client.generate(messages, sampling, seed=1):
            print(piece.text)
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use a channel of `services.common.rpc.channel`; its owner closes it."""
        self._stub: Any = rollouter_service_pb2_grpc.RollouterServiceStub(channel)  # type: ignore[no-untyped-call]

    async def generate(
        self,
        messages: tuple[Message, ...],
        sampling: SamplingParams,
        *,
        seed: int = 0,
        timeout_seconds: float = _GENERATE_SECONDS,
    ) -> AsyncIterator[CompletionPiece]:
        """Yield one completion in pieces; leaving the loop frees its slot.

        Raises:
            InvalidInputError: the prompt leaves no room in the context.
        """
        request = generate_request(messages, sampling, seed=seed)
        async for wire in self._stub.Generate(request, timeout=timeout_seconds):
            yield piece_from_proto(wire)

    async def get_status(self) -> ReplicaStatus:
        """Return what the replica is doing."""
        request = rollouter_service_pb2.RollouterServiceGetStatusRequest()
        return status_from_proto(await self._stub.GetStatus(request, timeout=_CALL_SECONDS))

    async def drain(self) -> None:
        """Tell the replica to finish or give back what it holds, and to exit."""
        await self._stub.Drain(rollouter_service_pb2.DrainRequest(), timeout=_CALL_SECONDS)
