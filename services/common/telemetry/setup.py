"""Set-up of tracing in one process: where spans go, and that this never slows or stops the service.

Spans go to a file, to an OTLP collector when the standard `OTEL_EXPORTER_OTLP_*` environment names one, to both or to
neither. Every exporter has a bounded queue and a thread of its own: when the queue is full the oldest spans are lost,
when the collector is dead the service does not notice, and at the end flushing takes at most two seconds.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from services.common.errors import ConfigError
from services.common.telemetry import names, trace
from services.common.telemetry.file_exporter import FileSpanExporter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

DEFAULT_SHUTDOWN_SECONDS = 2.0
"""Longest time that flushing may hold up a stop."""

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MAX_QUEUED_SPANS = 4096
_MAX_BATCH_SPANS = 512
_SCHEDULE_DELAY_MS = 1_000
# A train.step links to every trajectory it used; the default of 128 would cut them off.
_MAX_LINKS = 8192
_MAX_TEXT_CHARACTERS = 16_384

_log = structlog.get_logger("headrace.telemetry")


class Telemetry:
    """Handle of a process's tracing.

    Example:
        telemetry = setup_telemetry("queue", traces_path=run_dir / "traces.jsonl")
        await run_service("queue", ..., telemetry=telemetry)  # flushes it at the end
    """

    def __init__(self, processors: Sequence[SpanProcessor], *, content: bool) -> None:
        """Hold what must be flushed.

        Args:
            processors: one per place that spans go to.
            content: whether prompts and completions may be put on spans.
        """
        self._processors = tuple(processors)
        self.content = content

    @property
    def enabled(self) -> bool:
        """Whether spans go anywhere."""
        return bool(self._processors)

    def flush(self, timeout_seconds: float = DEFAULT_SHUTDOWN_SECONDS) -> bool:
        """Write out what is queued; returns whether all of it went out in time."""
        return _all_within([processor.force_flush for processor in self._processors], timeout_seconds)

    def shutdown(self, timeout_seconds: float = DEFAULT_SHUTDOWN_SECONDS) -> bool:
        """Write out what is queued and turn spans off; returns whether it was done in time. May be repeated."""
        trace.bind_tracer(None)
        processors, self._processors = self._processors, ()
        done = _all_within([processor.shutdown for processor in processors], timeout_seconds)
        if not done:
            _log.warning("spans were left behind, a collector does not answer", timeout_seconds=timeout_seconds)
        return done


class _IdGenerator(IdGenerator):
    """Ids from the operating system, or the ones that `trace.record_root` asks for.

    The SDK's own generator uses `random`, which training seeds: two services with one seed would share their ids.
    """

    def generate_span_id(self) -> int:
        forced = trace.forced_ids.get()
        return forced[1] if forced else int.from_bytes(os.urandom(8), "big") or 1

    def generate_trace_id(self) -> int:
        forced = trace.forced_ids.get()
        return forced[0] if forced else int.from_bytes(os.urandom(16), "big") or 1


def setup_telemetry(
    service: str,
    *,
    instance: str = "",
    traces_path: Path | None = None,
    sample_ratio: float = 1.0,
    content: bool = False,
    exporters: Sequence[SpanExporter] = (),
) -> Telemetry:
    """Bind this process's spans to their destinations.

    Args:
        service: `queue`, `rollouter`, `reward` or `trainer`; becomes the resource `headrace-<service>`.
        instance: the replica's id; empty takes the process id.
        traces_path: file to append OTLP JSON lines to; `None` writes none.
        sample_ratio: share of the trajectories named by this process whose trace is kept, in [0, 1].
        content: whether prompts and completions may be put on spans; kept on the handle for whoever makes them.
        exporters: further destinations, each behind a queue and thread of its own.

    Raises:
        ConfigError: the environment asks for an OTLP protocol that is not built in.
    """
    destinations = list(exporters)
    if traces_path is not None:
        destinations.append(FileSpanExporter(traces_path))
    if _otlp_wanted():
        destinations.append(_otlp_exporter())
    if not destinations:
        return Telemetry((), content=content)
    provider = TracerProvider(
        # The decision is taken where a trace is born; a span without a parent is a rare one (step, publish) and kept.
        sampler=ParentBased(root=ALWAYS_ON),
        resource=Resource.create(
            {
                names.SERVICE_NAME: f"headrace-{service}",
                names.SERVICE_INSTANCE_ID: instance or str(os.getpid()),
            }
        ),
        id_generator=_IdGenerator(),
        span_limits=SpanLimits(max_links=_MAX_LINKS, max_attribute_length=_MAX_TEXT_CHARACTERS),
        # The SDK's exit hook waits up to 30 s per processor; run_service flushes within two.
        shutdown_on_exit=False,
    )
    processors = [_batching(exporter) for exporter in destinations]
    for processor in processors:
        provider.add_span_processor(processor)
    trace.bind_tracer(provider.get_tracer("headrace"), sample_ratio=sample_ratio)
    return Telemetry(processors, content=content)


def _batching(exporter: SpanExporter) -> BatchSpanProcessor:
    return BatchSpanProcessor(
        exporter,
        max_queue_size=_MAX_QUEUED_SPANS,
        schedule_delay_millis=_SCHEDULE_DELAY_MS,
        max_export_batch_size=_MAX_BATCH_SPANS,
    )


def _otlp_wanted() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    off = os.environ.get("OTEL_TRACES_EXPORTER", "") == "none"
    return not disabled and not off and any(os.environ.get(name) for name in _ENDPOINT_VARIABLES)


def _otlp_exporter() -> SpanExporter:
    for name in _PROTOCOL_VARIABLES:
        protocol = os.environ.get(name, "grpc")
        if protocol != "grpc":
            message = f"{name} is {protocol!r}; only 'grpc' is built in: use it with the collector's port 4317"
            raise ConfigError(message)
    # Imported only where it is used: it brings the protobuf classes of OTLP and costs memory and start-up time.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter()


def _all_within(calls: Sequence[Callable[[], object]], timeout_seconds: float) -> bool:
    """Run each call in a thread that may be left behind, since none of them takes a deadline of its own."""
    deadline = time.monotonic() + timeout_seconds
    threads = [threading.Thread(target=call, name="telemetry-flush", daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
