import os
import socket
import subprocess
import sys
import time

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common.errors import ConfigError
from services.common.telemetry import names, trace
from services.common.telemetry.setup import setup_telemetry

PROGRAM = """
import pathlib, re, sys, time
from services.common.telemetry import names, trace
from services.common.telemetry.setup import setup_telemetry
import services.common.rpc.server
telemetry = setup_telemetry("test")
began = time.monotonic()
for _ in range(2000):
    trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=1, end_time=2)
recorded = time.monotonic()
telemetry.shutdown()
# Not `ru_maxrss`, which a child inherits from the process that started it.
peak_kib = int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])
print(recorded - began, time.monotonic() - recorded, peak_kib)
"""


class Stuck(SpanExporter):
    """Never finishes an export."""

    def export(self, _spans):
        time.sleep(30)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


def test_nothing_is_set_up_without_a_destination():
    telemetry = setup_telemetry("test")
    assert not telemetry.enabled
    assert telemetry.flush()
    assert telemetry.shutdown()


def test_a_step_links_to_thousands_of_trajectories():
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry("test", exporters=[exporter])
    links = [f"00-{'a' * 32}-{index:016x}-01" for index in range(1, 2001)]
    trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=1, end_time=2, links=links)
    telemetry.shutdown()
    assert len(exporter.get_finished_spans()[0].links) == 2000


def test_a_stuck_exporter_neither_holds_up_spans_nor_the_end():
    telemetry = setup_telemetry("test", exporters=[Stuck()])
    began = time.monotonic()
    for _ in range(2000):
        trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=1, end_time=2)
    assert not telemetry.shutdown(timeout_seconds=0.2)
    # Far below the export's 30 s, far above what a busy machine adds.
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_a_dead_collector_blocks_nothing_and_the_process_stays_small(kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if kind == "refusing":
            listener.close()
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    recording, stopping, max_rss_kib = map(float, done.stdout.splitlines()[-1].split())
    assert recording < 1.0
    assert stopping < 2.3
    assert max_rss_kib < 120 * 1024
    # Start and imports of the program included; a silent collector would hold it for ever.
    assert time.monotonic() - began < 25


def test_an_otlp_protocol_that_is_not_built_in_is_named():
    program = 'from services.common.telemetry.setup import setup_telemetry; setup_telemetry("test")'
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert ConfigError.__name__ in done.stderr
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/protobuf'" in done.stderr
