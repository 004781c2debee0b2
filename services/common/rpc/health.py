"""Is a service there? The standard gRPC health protocol, seen from outside."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.errors import HeadraceError, UnavailableError
from services.common.rpc.channel import open_channel

_POLL_SECONDS = 0.1
_CHECK_TIMEOUT_SECONDS = 1.0


async def check_health(address: str, *, timeout_seconds: float = _CHECK_TIMEOUT_SECONDS) -> str:
    """Ask once: `SERVING`, `NOT_SERVING`, or a sentence that says why there was no answer."""
    channel = open_channel(address)
    try:
        request = health_pb2.HealthCheckRequest()
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_seconds)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
    except HeadraceError as error:
        return error.message
    finally:
        await channel.close(None)


async def wait_healthy(address: str, timeout_seconds: float) -> None:
    """Wait until the service at `address` says that it serves.

    Raises:
        UnavailableError: it did not within the time; names the address and the last answer.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_seconds
    while True:
        answer = await check_health(address, timeout_seconds=min(_CHECK_TIMEOUT_SECONDS, max(0.05, timeout_seconds)))
        if answer == "SERVING":
            return
        if clock() + _POLL_SECONDS > deadline:
            message = f"{address} is not healthy after {timeout_seconds:g} s; its last answer: {answer}"
            raise UnavailableError(message, address=address)
        await asyncio.sleep(_POLL_SECONDS)
