"""Spans and W3C trace context: how one trajectory becomes one trace.

The trace id and the root span id of a trajectory are a hash of its name, so every service can join the trace without
asking anybody, and a re-issued member lands in the trace of the first try. The root span itself is written once, at the
end, by `record_root`; children may exist long before it.

The decision whether a trace is sampled is taken where it is born and travels as the `sampled` flag of the traceparent:
a trajectory is kept or left out as a whole.

Example:
    parent = trajectory_traceparent(run_id, key)
    with start_span(names.SPAN_GENERATE, parent=parent, attributes={names.REPLICA_ID: "r0"}) as span:
        span.set_attribute(names.USAGE_OUTPUT_TOKENS, 42)
    record_root(names.SPAN_TRAJECTORY, traceparent=parent, start_time=began, end_time=ended)

Until `services.common.telemetry.setup` binds a tracer, everything here is a no-op that still passes context on.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from services.common.types import MemberKey

    Attributes = Mapping[str, AttributeValue | None]

TRACEPARENT_KEY = "traceparent"
"""Name of the gRPC metadata entry that carries the context (W3C Trace Context)."""

_VERSION_LENGTH, _TRACE_ID_LENGTH, _SPAN_ID_LENGTH, _FLAGS_LENGTH = 2, 32, 16, 2
_NANOSECONDS = 1_000_000_000

forced_ids: ContextVar[tuple[int, int] | None] = ContextVar("headrace_forced_ids", default=None)
"""Trace and span id that the next span must get; read by the id generator in `setup`."""


class _Bound:
    """What this process does with spans; nothing until telemetry is set up."""

    def __init__(self) -> None:
        self.tracer: Tracer = otel_trace.NoOpTracer()
        self.sample_ratio = 1.0


_bound = _Bound()


def bind_tracer(tracer: Tracer | None, *, sample_ratio: float = 1.0) -> None:
    """Make every later span of this process go to `tracer`; `None` turns spans off.

    Args:
        tracer: where spans go.
        sample_ratio: share of the trajectories named by this process whose trace is kept, in [0, 1].
    """
    _bound.tracer = tracer or otel_trace.NoOpTracer()
    _bound.sample_ratio = sample_ratio


def trajectory_traceparent(run_id: str, key: MemberKey) -> str:
    """Trace context of a trajectory's root span, the same in every process and at every issue.

    Returns:
        A W3C traceparent whose flag says whether this trajectory's trace is kept, by this process's sample ratio.
    """
    digest = hashlib.blake2b(f"{run_id}/{key}".encode(), digest_size=24).digest()
    trace_id, span_id = digest[:16], digest[16:]
    kept = int.from_bytes(trace_id[8:], "big") < _bound.sample_ratio * 2.0**64
    return f"00-{trace_id.hex()}-{span_id.hex()}-{int(kept):02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Read a W3C traceparent; `None` when it is missing or malformed, as the standard demands."""
    parts = (text or "").strip().split("-")
    lengths = [len(part) for part in parts[:4]]
    if lengths != [_VERSION_LENGTH, _TRACE_ID_LENGTH, _SPAN_ID_LENGTH, _FLAGS_LENGTH]:
        return None
    if parts[0] == "ff" or (parts[0] == "00" and len(parts) > len(lengths)):
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """Write a span context as a W3C traceparent."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def span_traceparent(span: Span) -> str:
    """Traceparent that makes later spans children of `span`, or links to it."""
    return format_traceparent(span.get_span_context())


def current_traceparent() -> str | None:
    """Traceparent of the current span, or `None` when there is none."""
    context = otel_trace.get_current_span().get_span_context()
    return format_traceparent(context) if context.is_valid else None


def make_current(traceparent: str | None) -> None:
    """Make `traceparent` current for the rest of this task; for tasks that serve one request and end."""
    if traceparent:
        otel_context.attach(_parent_context(traceparent))


@contextmanager
def use_traceparent(traceparent: str | None) -> Iterator[None]:
    """Make `traceparent` current inside the block; logs, RPCs and spans in there join its trace."""
    token = otel_context.attach(_parent_context(traceparent))
    try:
        yield
    finally:
        otel_context.detach(token)


@contextmanager
def start_span(
    name: str,
    *,
    parent: str | None = None,
    links: Iterable[str] = (),
    start_time: float | None = None,
    attributes: Attributes | None = None,
) -> Iterator[Span]:
    """Open a span that is current inside the block and ends with it; an exception marks it failed.

    Args:
        name: one of `names.SPAN_*`.
        parent: traceparent of the parent; `None` takes the current span.
        links: traceparents that the span refers to.
        start_time: seconds since the epoch; `None` is now.
        attributes: keys from `names`; entries that are `None` are left out.
    """
    with _bound.tracer.start_as_current_span(
        name,
        context=_parent_context(parent),
        links=_links(links),
        start_time=None if start_time is None else _nanoseconds(start_time),
        attributes=_present(attributes),
    ) as span:
        yield span


def record_span(
    name: str,
    *,
    parent: str | None,
    start_time: float,
    end_time: float,
    links: Iterable[str] = (),
    attributes: Attributes | None = None,
    failure: str | None = None,
) -> str:
    """Write a span that is already over.

    Args:
        name: one of `names.SPAN_*`.
        parent: traceparent of the parent; `None` takes the current span.
        start_time: seconds since the epoch.
        end_time: seconds since the epoch; not before `start_time`, else it is set to it (clocks differ).
        links: traceparents that the span refers to.
        attributes: keys from `names`; entries that are `None` are left out.
        failure: why what it stands for failed; `None` when it did not.

    Returns:
        The traceparent of the new span.
    """
    return _record(
        name,
        context=_parent_context(parent),
        times=(start_time, end_time),
        links=links,
        attributes=attributes,
        failure=failure,
    )


def record_root(
    name: str,
    *,
    traceparent: str,
    start_time: float,
    end_time: float,
    attributes: Attributes | None = None,
    failure: str | None = None,
) -> None:
    """Write the root span whose trace and span id `traceparent` fixes; nothing when its flag says it is not kept.

    Args:
        name: one of `names.SPAN_*`.
        traceparent: the context that the children already use as their parent.
        start_time: seconds since the epoch.
        end_time: seconds since the epoch.
        attributes: keys from `names`; entries that are `None` are left out.
        failure: why it failed; `None` when it did not.
    """
    root = parse_traceparent(traceparent)
    if root is None or not root.trace_flags.sampled:
        return
    token = forced_ids.set((root.trace_id, root.span_id))
    try:
        _record(
            name,
            context=otel_context.Context(),
            times=(start_time, end_time),
            links=(),
            attributes=attributes,
            failure=failure,
        )
    finally:
        forced_ids.reset(token)


def _record(
    name: str,
    *,
    context: Context,
    times: tuple[float, float],
    links: Iterable[str],
    attributes: Attributes | None,
    failure: str | None,
) -> str:
    start_time, end_time = times
    span = _bound.tracer.start_span(
        name,
        context=context,
        links=_links(links),
        start_time=_nanoseconds(start_time),
        attributes=_present(attributes),
    )
    if failure is not None:
        span.set_status(Status(StatusCode.ERROR, failure))
    span.end(_nanoseconds(max(start_time, end_time)))
    return span_traceparent(span)


def _parent_context(traceparent: str | None) -> Context:
    """Context with `traceparent` as the current span; the present context when there is none to set."""
    parent = parse_traceparent(traceparent)
    if parent is None:
        return otel_context.get_current()
    return otel_trace.set_span_in_context(NonRecordingSpan(parent))


def _links(traceparents: Iterable[str]) -> list[Link]:
    contexts = (parse_traceparent(traceparent) for traceparent in traceparents)
    return [Link(context) for context in contexts if context is not None]


def _present(attributes: Attributes | None) -> dict[str, AttributeValue]:
    return {key: value for key, value in (attributes or {}).items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
