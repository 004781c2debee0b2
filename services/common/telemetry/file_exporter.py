"""Spans in a file: OTLP JSON lines that several processes append to.

Each batch becomes one line, a valid OTLP JSON `TracesData` object (ids in hex, 64-bit integers as strings, keys in
lowerCamelCase), and one `write` to a descriptor opened for appending, so lines of different processes do not mix. The
file can be fed to any OTLP collector (`otlpjsonfile` receiver).

The spans are encoded directly: going through protobuf and its JSON form takes several times as long and would need the
ids rewritten, since protobuf's JSON has them in base64.
"""

from __future__ import annotations

import base64
import json
import math
import os
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""Bits of OTLP span flags above the W3C trace flags."""

_log = structlog.get_logger("headrace.telemetry")


class FileSpanExporter(SpanExporter):
    """Appends spans to one file that other processes write too.

    Example:
        provider.add_span_processor(BatchSpanProcessor(FileSpanExporter(run_dir / "traces.jsonl")))
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; it and its folder are made if they are missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._torn = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans as one line; a full disk costs spans, never the service."""
        if self._descriptor < 0:
            return SpanExportResult.FAILURE
        line = json.dumps(encode_spans(spans), separators=(",", ":")).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            _log.warning("spans could not be written", path=str(self._path), spans=len(spans), error=str(error))
            return SpanExportResult.FAILURE
        # What is missing of a torn line is not sent after it: another process may have written in between.
        self._torn = written < len(line)
        return SpanExportResult.FAILURE if self._torn else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back here."""
        return True


def read_spans(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (service name, OTLP JSON span) for every span in the file; a line torn by a kill is skipped."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                continue
            for resource_spans in data["resourceSpans"]:
                attributes = resource_spans["resource"]["attributes"]
                service = next((a["value"]["stringValue"] for a in attributes if a["key"] == "service.name"), "")
                for scope_spans in resource_spans["scopeSpans"]:
                    yield from ((service, span) for span in scope_spans["spans"])


def encode_spans(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Encode spans as an OTLP JSON `TracesData` object, grouped by resource and scope."""
    groups: dict[Any, dict[Any, list[dict[str, Any]]]] = {}
    for span in spans:
        groups.setdefault(span.resource, {}).setdefault(span.instrumentation_scope, []).append(_span(span))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource.attributes)},
                "scopeSpans": [
                    {"scope": {"name": scope.name, "version": scope.version or ""} if scope else {}, "spans": encoded}
                    for scope, encoded in scopes.items()
                ],
            }
            for resource, scopes in groups.items()
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.context
    encoded: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        # SDK kinds start at INTERNAL = 0; OTLP keeps 0 for unspecified.
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "flags": _flags(context, span.parent),
    }
    if span.parent is not None:
        encoded["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.attributes:
        encoded["attributes"] = _attributes(span.attributes)
    if span.events:
        encoded["events"] = [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    if span.links:
        encoded["links"] = [
            {
                "traceId": f"{link.context.trace_id:032x}",
                "spanId": f"{link.context.span_id:016x}",
                "attributes": _attributes(link.attributes),
                "flags": _flags(link.context, link.context),
            }
            for link in span.links
        ]
    encoded["status"] = {"code": span.status.status_code.value}
    if span.status.description:
        encoded["status"]["message"] = span.status.description
    return encoded


def _flags(context: SpanContext, remote: SpanContext | None) -> int:
    return int(context.trace_flags) | _HAS_IS_REMOTE | (_IS_REMOTE if remote is not None and remote.is_remote else 0)


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:  # noqa: ANN401 - attribute values are a union that the SDK checks
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        # JSON has no such numbers; protobuf's JSON writes them as NaN, Infinity and -Infinity.
        return {"doubleValue": value if math.isfinite(value) else json.dumps(value)}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
