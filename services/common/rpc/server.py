"""The life of a service: start, serve, drain, stop. The same for all of them.

    start   bind, register, start background tasks, say SERVING
    serve   until SIGTERM or SIGINT, the stop event, the death of the parent launcher, or a crash
    drain   say NOT_SERVING, refuse new requests, run `on_drain`, let running requests end; at most the grace time
    stop    cancel the rest, flush telemetry

A background task that raises takes the service down: everything else is cancelled and the error leaves `run_service`,
so that the process ends non-zero and its supervisor restarts it. A second signal ends the process at once.

Example:
    await run_service("queue", address="127.0.0.1:0", register=lambda server: add_servicer(servicer, server))
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # not in the stubs

from services.common.errors import ConfigError, HeadraceError, InternalError
from services.common.rpc.channel import DEFAULT_MAX_MESSAGE_BYTES, message_size_options
from services.common.rpc.interceptors import ActiveCalls, ServiceInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

    from services.common.telemetry.setup import Telemetry

PARENT_PID_VARIABLE = "HEADRACE_PARENT_PID"
"""Set by the launcher to its own process id; a service whose parent is no longer that one stops."""

_DEFAULT_GRACE_SECONDS = 10.0
_DEFAULT_MAX_CONCURRENT_RPCS = 1024
_PARENT_POLL_SECONDS = 1.0
_SERVER_OPTIONS = [
    # With port sharing, which is gRPC's default, a second server would silently take half of the requests.
    ("grpc.so_reuseport", 0),
    # Clients send keepalives every 20 s, also without calls; more often than every 10 s is refused.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_log = structlog.get_logger("headrace.rpc")


async def run_service(
    name: str,
    *,
    address: str,
    register: Callable[[grpc.aio.Server], None],
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    on_started: Callable[[str], Awaitable[None]] | None = None,
    on_drain: Callable[[], Awaitable[None]] | None = None,
    stop: asyncio.Event | None = None,
    grace_seconds: float = _DEFAULT_GRACE_SECONDS,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    max_concurrent_rpcs: int = _DEFAULT_MAX_CONCURRENT_RPCS,
    telemetry: Telemetry | None = None,
    handle_signals: bool = True,
) -> None:
    """Run a service until it is told to stop, and leave nothing behind.

    Args:
        name: the service, for logs.
        address: `host:port` to listen on; port 0 takes a free one.
        register: adds servicers to the server.
        background: loops that run beside the server. One that returns is done; one that raises ends the service.
        on_started: awaited with the bound `host:port` before background tasks start and before health says SERVING.
        on_drain: awaited when the service is to stop, while background tasks still run. It should end long polls and
            endless streams and finish or return what is leased; what it leaves is cancelled after the grace time.
        stop: set it to make the service drain and stop by itself.
        grace_seconds: longest time from the wish to stop until everything is cancelled.
        max_message_bytes: bound of one message in either direction.
        max_concurrent_rpcs: bound of requests served at once, long polls and streams included; more are refused.
        telemetry: flushed at the end.
        handle_signals: whether SIGTERM and SIGINT stop the service; off where several share a process.

    Raises:
        ConfigError: the address cannot be bound.
        Exception: whatever a background task raised.
    """
    stop = stop or asyncio.Event()
    active = ActiveCalls()
    health = health_aio.HealthServicer()
    server = _build_server(active, max_message_bytes=max_message_bytes, max_concurrent_rpcs=max_concurrent_rpcs)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    register(server)
    bound = bind(server, address)
    async with _flushing(telemetry):
        await server.start()
        try:
            with _signals(stop, enabled=handle_signals), _unwrapped():
                async with asyncio.TaskGroup() as group:
                    # First, so that a long `on_started` is no way to outlive the launcher.
                    tasks = [group.create_task(_watch_parent(stop))]
                    if on_started is not None:
                        await on_started(bound)
                    tasks += [group.create_task(run()) for run in background]
                    if not stop.is_set():
                        await health.set("", health_pb2.HealthCheckResponse.SERVING)
                        _log.info("serving", service_name=name, address=bound)
                    await stop.wait()
                    await _drain(server, health=health, active=active, on_drain=on_drain, grace_seconds=grace_seconds)
                    for task in tasks:
                        task.cancel()
        finally:
            await server.stop(None)
            _log.info("stopped", service_name=name)


def bind(server: grpc.aio.Server, address: str) -> str:
    """Listen on `address` and return it with the port that was really taken.

    Raises:
        ConfigError: the address is malformed, in use or not this machine's.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        message = f"cannot listen on {address!r}: write it as host:port, e.g. 127.0.0.1:50051"
        raise ConfigError(message)
    try:
        return f"{host}:{server.add_insecure_port(address)}"
    except RuntimeError as error:
        message = (
            f"cannot listen on {address}: {_bind_problem(host, int(port))}; "
            "stop the process that uses it, or choose another address or port 0"
        )
        raise ConfigError(message) from error


def _bind_problem(host: str, port: int) -> str:
    """Ask the operating system for the reason, which gRPC only writes to its own log."""
    try:
        infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        with socket.socket(infos[0][0], socket.SOCK_STREAM) as probe:
            probe.bind(infos[0][4])
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "the address was refused"


def _build_server(active: ActiveCalls, *, max_message_bytes: int, max_concurrent_rpcs: int) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=[ServiceInterceptor(active)],
        options=[*message_size_options(max_message_bytes), *_SERVER_OPTIONS],
        maximum_concurrent_rpcs=max_concurrent_rpcs,
    )


async def _drain(
    server: grpc.aio.Server,
    *,
    health: health_aio.HealthServicer,
    active: ActiveCalls,
    on_drain: Callable[[], Awaitable[None]] | None,
    grace_seconds: float,
) -> None:
    _log.info("draining", active_requests=active.count, grace_seconds=grace_seconds)
    await health.enter_graceful_shutdown()
    try:
        async with asyncio.timeout(grace_seconds), asyncio.TaskGroup() as group:
            # Refuses new requests at once. It also waits for health watches, which never end, so it is not awaited.
            refusing = group.create_task(server.stop(grace_seconds))
            if on_drain is not None:
                await on_drain()
            await active.wait_idle()
            refusing.cancel()
    except TimeoutError:
        _log.warning("grace time is over, cancelling the rest", active_requests=active.count)


async def _watch_parent(stop: asyncio.Event) -> None:
    """Stop the service when the launcher that started it is gone, so that no orphan stays."""
    expected = os.environ.get(PARENT_PID_VARIABLE)
    if not expected:
        return
    while str(os.getppid()) == expected:  # noqa: ASYNC110 - the operating system offers nothing to wait on
        await asyncio.sleep(_PARENT_POLL_SECONDS)
    _log.warning("the launcher is gone, stopping", parent_pid=expected)
    stop.set()


@contextmanager
def _signals(stop: asyncio.Event, *, enabled: bool) -> Iterator[None]:
    """First SIGTERM or SIGINT: drain. Second: end the process at once."""
    if not enabled:
        yield
        return
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int) -> None:
        if received:
            _log.error("second signal, leaving at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        received.append(number)
        _log.info("asked to stop", signal=signal.Signals(number).name)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Let a lone error leave the task group as itself, so that callers can catch it by its class."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        # An error of ours says all that there is to say, and whoever started the service writes that down.
        if not isinstance(error, HeadraceError) or isinstance(error, InternalError):
            _log.exception("a task of the service crashed")
        raise error from None


@asynccontextmanager
async def _flushing(telemetry: Telemetry | None) -> AsyncIterator[None]:
    """Write out what telemetry still holds, whatever happened; it takes at most its own bound."""
    try:
        yield
    finally:
        if telemetry is not None:
            await asyncio.to_thread(telemetry.shutdown)
