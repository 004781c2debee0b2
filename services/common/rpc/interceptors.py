"""Errors and trace context on the wire, mapped once in each direction.

Server: a `HeadraceError` becomes a gRPC status with `google.rpc.ErrorInfo` (reason, domain, metadata) in the trailing
metadata; anything else becomes `INTERNAL` with a trace id, and its text stays in the log. Client: the status becomes
the same class again. Both: the W3C `traceparent` of the current span travels in the metadata and is current while the
request is served. There are no RPC spans; spans are made where work has a meaning.

So servicers hold no `try` and no `abort`, and callers catch `services.common.errors`, never `grpc.RpcError`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import TYPE_CHECKING, Any, cast

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.common import errors
from services.common.telemetry import trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    # Generic for the type checker only; at run time grpc's classes take no parameters.
    _ServerBase = grpc.aio.ServerInterceptor[Any, Any]
    _StreamBase = grpc.aio.UnaryStreamClientInterceptor[Any, Any]
else:
    _ServerBase = grpc.aio.ServerInterceptor
    _StreamBase = grpc.aio.UnaryStreamClientInterceptor

ERROR_DOMAIN = "headrace.v1"
"""`ErrorInfo.domain` of every error of ours; a reason counts only together with it."""

_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_MAX_MESSAGE_CHARACTERS = 2000
_MAX_METADATA_CHARACTERS = 500
_TOO_LARGE = "larger than max"

_log = structlog.get_logger("headrace.rpc")


def _tree(root: type[errors.HeadraceError]) -> Iterator[type[errors.HeadraceError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_CLASS_BY_REASON = {cls.reason: cls for cls in _tree(errors.InternalError)} | {
    cls.reason: cls for cls in _tree(errors.HeadraceError) if cls is not errors.HeadraceError
}
_CLASS_BY_CODE: dict[grpc.StatusCode, type[errors.HeadraceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInputError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidInputError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: errors.ConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    # A server that stops cancels what it still serves; a caller's own cancellation is asyncio.CancelledError.
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DATA_LOSS: errors.CorruptDataError,
}


def status_from_error(error: errors.HeadraceError) -> grpc.Status:
    """Turn an error of ours into a status with its `ErrorInfo`; long texts are cut, since headers have a limit."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason,
        domain=ERROR_DOMAIN,
        metadata={key: str(value)[:_MAX_METADATA_CHARACTERS] for key, value in error.metadata.items()},
    )
    detail = AnyMessage()
    detail.Pack(info)
    code: int = grpc.StatusCode[error.code].value[0]
    message = error.message[:_MAX_MESSAGE_CHARACTERS]
    return rpc_status.to_status(status_pb2.Status(code=code, message=message, details=[detail]))


def error_from_rpc(
    error: grpc.aio.AioRpcError, *, address: str, method: str, timeout_seconds: float | None
) -> errors.HeadraceError:
    """Turn a failed call into the class that the server raised, or into the one that fits its code."""
    details = error.details() or ""
    info = _error_info(error)
    if info is not None and info.reason in _CLASS_BY_REASON:
        same = _CLASS_BY_REASON[info.reason](details)
        same.metadata = dict(info.metadata)
        return same
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineError(
            f"{method} at {address} did not answer within {timeout_seconds:g} s; is the peer overloaded?",
            address=address,
        )
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        return errors.UnavailableError(f"{address} cannot be reached for {method}: {details}", address=address)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return errors.InvalidInputError(f"a message of {method} at {address} is too large: {details}", address=address)
    cls = _CLASS_BY_CODE.get(code, errors.InternalError)
    return cls(f"{method} at {address} failed with {code.name}: {details}", address=address)


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == _STATUS_DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
                    return info
    return None


class ActiveCalls:
    """Counts the requests being served, so that a drain knows when it is done. Health checks do not count."""

    def __init__(self) -> None:
        """Start with none."""
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        """Requests being served now."""
        return self._count

    def enter(self) -> None:
        """Count one more."""
        self._count += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count one less."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until nothing is served; the caller sets the deadline."""
        await self._idle.wait()


class ServiceInterceptor(_ServerBase):
    """Server side: maps errors, makes the caller's trace current, counts what is being served."""

    def __init__(self, active: ActiveCalls) -> None:
        """Count requests in `active`."""
        self._active = active
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Wrap the handler that serves this request; health checks pass as they are."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith("/grpc.health."):
            return handler
        # Each request is served by a task of its own, so what is attached here ends with the request.
        for key, value in handler_call_details.invocation_metadata:
            if key == trace.TRACEPARENT_KEY:
                trace.make_current(str(value))
        if method not in self._handlers:
            # A method has one handler as long as the server lives, and only methods that exist get here.
            self._handlers[method] = _wrapped(handler, method, self._active)
        return self._handlers[method]


def _wrapped(
    handler: grpc.RpcMethodHandler[Any, Any], method: str, active: ActiveCalls
) -> grpc.RpcMethodHandler[Any, Any]:
    sides = (handler.request_streaming, handler.response_streaming)
    arity = "_".join("stream" if streaming else "unary" for streaming in sides)
    behavior = getattr(handler, arity)

    async def respond(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401 - any RPC
        active.enter()
        try:
            return await behavior(request, context)
        except Exception as error:  # the boundary of a request: the caller gets a status, the service goes on
            await _abort(error, method, context)
        finally:
            active.leave()

    async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:  # noqa: ANN401
        active.enter()
        try:
            async for response in behavior(request, context):
                yield response
        except Exception as error:  # the boundary of a request: the caller gets a status, the service goes on
            await _abort(error, method, context)
        finally:
            active.leave()

    # A streaming handler may also be a coroutine that calls `context.write`; that one is awaited.
    yields = handler.response_streaming and not inspect.iscoroutinefunction(behavior)
    factory = getattr(grpc, f"{arity}_rpc_method_handler")
    wrapped: grpc.RpcMethodHandler[Any, Any] = factory(
        stream if yields else respond,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return wrapped


async def _abort(error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, errors.HeadraceError):
        traceparent = trace.parse_traceparent(trace.current_traceparent())
        trace_id = f"{traceparent.trace_id:032x}" if traceparent else os.urandom(16).hex()
        _log.error("unexpected error in a request", method=method, error_trace=trace_id, exc_info=error)
        error = errors.InternalError(f"internal error, trace {trace_id}", trace=trace_id)
    await context.abort_with_status(status_from_error(error))  # type: ignore[attr-defined]  # not in the stubs


class CallerSide:
    """What a client adds to its calls: a deadline, the trace context, the mapping of errors."""

    def __init__(self, address: str, default_timeout_seconds: float) -> None:
        """Name the peer in errors; a call without a timeout gets the default."""
        self._address = address
        self._default_timeout_seconds = default_timeout_seconds

    def timeout(self, asked: float | None) -> float:
        """Return the timeout of a call that asks for this one."""
        return self._default_timeout_seconds if asked is None else asked

    def metadata(self, own: Iterable[tuple[str, str | bytes]] | None) -> grpc.aio.Metadata | None:
        """Return the metadata of a call with some of its own."""
        traceparent = trace.current_traceparent()
        if traceparent is None and own is None:
            return None
        traced = () if traceparent is None else ((trace.TRACEPARENT_KEY, traceparent),)
        return grpc.aio.Metadata(*(own or ()), *traced)

    def error(self, error: grpc.aio.AioRpcError, method: str, timeout_seconds: float | None) -> errors.HeadraceError:
        """Return what a failed call raises."""
        name = method.rpartition("/")[2]
        return error_from_rpc(error, address=self._address, method=name, timeout_seconds=timeout_seconds)


class StreamInterceptor(_StreamBase):
    """Client side of server-streaming calls; unary ones, which are many, do without a task of an interceptor."""

    def __init__(self, caller: CallerSide) -> None:
        """Add what `caller` says."""
        self._caller = caller

    async def intercept_unary_stream(  # type: ignore[override]  # the stubs miss that continuation is awaited
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[grpc.aio.UnaryStreamCall[Any, Any]]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,  # noqa: ANN401 - any RPC
    ) -> AsyncIterator[Any]:
        """Open the stream; a failure is raised as an error of ours when the reader gets there."""
        asked = client_call_details
        details = grpc.aio.ClientCallDetails(
            asked.method,
            self._caller.timeout(asked.timeout),
            self._caller.metadata(asked.metadata),
            asked.credentials,
            asked.wait_for_ready,
        )
        return self._responses(await continuation(details, request), details)

    async def _responses(
        self, call: grpc.aio.UnaryStreamCall[Any, Any], details: grpc.aio.ClientCallDetails
    ) -> AsyncIterator[Any]:
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            # The stubs promise text, grpc passes bytes.
            method = bytes(details.method).decode() if not isinstance(details.method, str) else details.method
            raise self._caller.error(error, method, details.timeout) from error
        finally:
            # A reader that stops early must not leave the server sending.
            call.cancel()
