"""Channels: one per target, made in a service's `server.py`, closed there, reused by every client of that target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from services.common.rpc.interceptors import CallerSide, StreamInterceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    Metadata = Iterable[tuple[str, str | bytes]]

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bound of one message in either direction; larger things are streamed in chunks."""
DEFAULT_TIMEOUT_SECONDS = 30.0
"""Deadline of a call that does not name one."""

_KEEPALIVE_TIME_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MIN_RECONNECT_MS = 100
_MAX_RECONNECT_MS = 2_000
_SERVICE_CONFIG = '{"loadBalancingConfig": [{"round_robin": {}}]}'
_CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # Long polls keep a call open, but a channel must notice a dead peer between calls too.
    ("grpc.keepalive_permit_without_calls", 1),
    # A restarted peer should be found within seconds, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", _MIN_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _MAX_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MS),
    ("grpc.service_config", _SERVICE_CONFIG),
    # An http_proxy variable meant for downloads must not swallow traffic between services.
    ("grpc.enable_http_proxy", 0),
]


def message_size_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Channel and server arguments that bound a message in both directions."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]


def open_channel(
    address: str,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> grpc.aio.Channel:
    """Open a channel that raises errors of `services.common.errors`, carries the trace and bounds every call.

    Nothing is connected before the first call. The caller closes it.

    Args:
        address: `host:port`, or any gRPC target such as `dns:///queue:50051`.
        max_message_bytes: bound of one message in either direction.
        default_timeout_seconds: deadline of calls that pass no `timeout`. Streams that last must pass their own.
    """
    caller = CallerSide(address, default_timeout_seconds)
    channel = grpc.aio.insecure_channel(
        address,
        options=[*message_size_options(max_message_bytes), *_CHANNEL_OPTIONS],
        interceptors=[StreamInterceptor(caller)],  # type: ignore[list-item]  # the stubs name a placeholder type here
    )
    return _Channel(channel, caller)


class _Channel(grpc.aio.Channel):
    """A channel of grpc whose unary calls are coroutines that do what an interceptor would do.

    An interceptor costs a task for each call, a fifth of what a small call costs its client.
    """

    def __init__(self, channel: grpc.aio.Channel, caller: CallerSide) -> None:
        self._channel = channel
        self._caller = caller

    def unary_unary(self, method: str, *serializers: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]  # noqa: ANN401
        behavior: Any = self._channel.unary_unary(method, *serializers, **options)
        caller = self._caller

        async def call(request: Any, *, timeout: float | None = None, metadata: Metadata | None = None) -> Any:  # noqa: ANN401
            seconds = caller.timeout(timeout)
            try:
                return await behavior(request, timeout=seconds, metadata=caller.metadata(metadata))
            except grpc.aio.AioRpcError as error:
                raise caller.error(error, method, seconds) from error

        return call

    def unary_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as grpc has it
        return self._channel.unary_stream(*args, **options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        return self._channel.stream_unary(*args, **options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        return self._channel.stream_stream(*args, **options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> grpc.aio.Channel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._channel.__aexit__(kind, error, traceback)
