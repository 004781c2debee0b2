import base64
import json
import math
import multiprocessing
import re

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.trace.export import SpanExportResult

from services.common.telemetry import names, trace
from services.common.telemetry.file_exporter import FileSpanExporter, read_spans
from services.common.telemetry.setup import setup_telemetry

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def write_spans(path, service, count):
    telemetry = setup_telemetry(service, traces_path=path)
    for index in range(count):
        trace.record_span(
            names.SPAN_QUEUE_PUT, parent=PARENT, start_time=1, end_time=2, attributes={names.MEMBER: index}
        )
        if index % 50 == 0:
            telemetry.flush()
    telemetry.shutdown()


def as_proto(line):
    """Parse one line with protobuf's own JSON parser, which wants ids in base64."""

    def to_base64(match):
        return f'"{match[1]}":"{base64.b64encode(bytes.fromhex(match[2])).decode()}"'

    text = re.sub(r'"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"', to_base64, line)
    return json_format.Parse(text, TracesData())


def test_lines_are_valid_otlp_json_with_every_kind_of_value(tmp_path):
    path = tmp_path / "run" / "traces.jsonl"
    telemetry = setup_telemetry("test", instance="r0", traces_path=path)
    with trace.start_span(
        names.SPAN_GENERATE,
        parent=PARENT,
        links=[PARENT],
        attributes={
            "text": 'a "quoted" line\n',
            "true": True,
            "int": 2**40,
            "float": 0.5,
            "nan": float("nan"),
            "infinite": float("-inf"),
            "bytes": b"\x00\xff",
            "list": (1, 2),
        },
    ) as span:
        span.add_event(names.EVENT_ADOPTION, {names.POLICY_VERSION: 3})
    telemetry.shutdown()
    data = as_proto(path.read_text())
    resource = {a.key: a.value.string_value for a in data.resource_spans[0].resource.attributes}
    written = data.resource_spans[0].scope_spans[0].spans[0]
    values = {a.key: a.value for a in written.attributes}
    assert resource["service.name"] == "headrace-test"
    assert resource["service.instance.id"] == "r0"
    assert written.trace_id.hex() == "a" * 32
    assert written.parent_span_id.hex() == "b" * 16
    assert written.kind == 1
    assert written.events[0].attributes[0].value.int_value == 3
    assert written.links[0].span_id.hex() == "b" * 16
    assert values["text"].string_value == 'a "quoted" line\n'
    assert values["true"].bool_value is True
    assert values["int"].int_value == 2**40
    assert math.isnan(values["nan"].double_value)
    assert values["infinite"].double_value == float("-inf")
    assert values["bytes"].bytes_value == b"\x00\xff"
    assert [item.int_value for item in values["list"].array_value.values] == [1, 2]


def test_two_processes_share_one_file(tmp_path):
    path = tmp_path / "traces.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_spans, args=(path, service, 300)) for service in ("queue", "trainer")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    for line in path.read_text().splitlines():
        json.loads(line)
    spans = list(read_spans(path))
    for service in ("headrace-queue", "headrace-trainer"):
        assert sum(name == service for name, _ in spans) == 300
    assert all(re.fullmatch("[0-9a-f]{32}", span["traceId"]) for _, span in spans)
    assert all(re.fullmatch("[0-9a-f]{16}", span["spanId"]) for _, span in spans)


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "traces.jsonl"
    write_spans(path, "queue", 1)
    with path.open("a") as file:
        file.write('{"resourceSpans": [\n')
    write_spans(path, "queue", 1)
    assert len(list(read_spans(path))) == 2


def test_a_closed_exporter_refuses_quietly(tmp_path):
    exporter = FileSpanExporter(tmp_path / "traces.jsonl")
    exporter.shutdown()
    exporter.shutdown()
    assert exporter.force_flush()
    assert exporter.export([]) is SpanExportResult.FAILURE


def test_a_full_disk_costs_spans_and_no_more():
    from pathlib import Path

    exporter = FileSpanExporter(Path("/dev/full"))
    assert exporter.export([]) is SpanExportResult.FAILURE
    exporter.shutdown()
