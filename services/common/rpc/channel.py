"""Channels: one per target, made in a service's `server.py`, closed there, reused by every client of that target."""

from __future__ import annotations

import grpc

from services.common.rpc.interceptors import StreamInterceptor, UnaryInterceptor

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
    return grpc.aio.insecure_channel(
        address,
        options=[*message_size_options(max_message_bytes), *_CHANNEL_OPTIONS],
        interceptors=[  # the stubs name a placeholder type here
            UnaryInterceptor(address, default_timeout_seconds),  # type: ignore[list-item]
            StreamInterceptor(address, default_timeout_seconds),  # type: ignore[list-item]
        ],
    )
