"""Logs: one JSON object per line with service, run, trace and span; the standard library's logs go the same way.

Modules take a logger with `structlog.get_logger("headrace.<part>")` and pass facts as keywords. What is bound with
`structlog.contextvars` is on every line of that task.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog
from opentelemetry import trace as otel_trace

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import EventDict, Processor, WrappedLogger


_HANDLER_NAME = "headrace"
"""Marks the handler made here, so that a second set-up replaces it and no other."""


def setup_logging(
    service: str,
    *,
    run_id: str = "",
    level: str = "info",
    path: Path | None = None,
    console: bool = False,
) -> None:
    """Send every log line of this process to one place; a second call replaces the first.

    Args:
        service: name on every line.
        run_id: the run on every line; left out while it is empty.
        level: lowest level that is written, e.g. `info`.
        path: file to append to; `None` writes to standard error.
        console: coloured text for people instead of JSON, when standard error is a terminal.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Facts(service, run_id),
        _add_trace,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    as_text = console and path is None and sys.stderr.isatty()
    handler = _handler(path)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_renderers(as_text=as_text))
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == _HANDLER_NAME]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())


def _handler(path: Path | None) -> logging.Handler:
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.set_name(_HANDLER_NAME)
    return handler


def _renderers(*, as_text: bool) -> list[Processor]:
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if as_text:
        # The plain form: the pretty one prints local variables, which may be prompts or secrets.
        return [strip, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [strip, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


class _Facts:
    """Puts what is the same on every line of this process there."""

    def __init__(self, service: str, run_id: str) -> None:
        self._facts = {"service": service} | ({"run": run_id} if run_id else {})

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**self._facts, **event}


def _add_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = otel_trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event
