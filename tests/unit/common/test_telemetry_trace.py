import random

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from services.common.telemetry import names, trace
from services.common.telemetry.setup import setup_telemetry
from services.common.types import MemberKey, Partition, TaskId

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def key(member=0):
    return MemberKey(partition=Partition.TRAIN, task_id=TaskId("00000012"), attempt=0, member=member)


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry("test", exporters=[exporter])

    def finished():
        assert telemetry.flush()
        return {span.name: span for span in exporter.get_finished_spans()}

    yield finished
    telemetry.shutdown()


def test_a_trajectory_has_the_same_context_everywhere_and_no_other_has_it():
    mine = trace.trajectory_traceparent("run", key())
    assert mine == trace.trajectory_traceparent("run", key())
    assert mine != trace.trajectory_traceparent("run", key(1))
    assert mine != trace.trajectory_traceparent("other", key())
    assert mine == "00-bfe3ecfd3053f5cdd49b46a67739fc4b-7f4d75f35aca830d-01"


def test_a_traceparent_survives_reading_and_writing():
    context = trace.parse_traceparent(PARENT)
    assert context.is_remote
    assert trace.format_traceparent(context) == PARENT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        f"00-{'a' * 32}-{'b' * 16}",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"00-{'g' * 32}-{'b' * 16}-01",
        f"ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-01-more",
    ],
)
def test_a_malformed_traceparent_is_none(text):
    assert trace.parse_traceparent(text) is None


def test_a_later_version_of_the_standard_is_read():
    assert trace.parse_traceparent(f"01-{'a' * 32}-{'b' * 16}-01-more") is not None


def test_a_span_joins_the_trace_it_is_given_and_passes_it_on(spans):
    with trace.start_span(
        names.SPAN_GENERATE, parent=PARENT, attributes={names.STEP: 3, names.REWARD: None}, links=[PARENT, "broken"]
    ) as span:
        assert trace.current_traceparent() == trace.span_traceparent(span)
        inner = trace.record_span(names.SPAN_TOOL, parent=None, start_time=1.5, end_time=2.5)
    assert trace.current_traceparent() is None
    generate, tool = spans()[names.SPAN_GENERATE], spans()[names.SPAN_TOOL]
    assert f"{generate.context.trace_id:032x}" == "a" * 32
    assert f"{generate.parent.span_id:016x}" == "b" * 16
    assert dict(generate.attributes) == {names.STEP: 3}
    assert [f"{link.context.span_id:016x}" for link in generate.links] == ["b" * 16]
    assert tool.parent.span_id == generate.context.span_id
    assert (tool.start_time, tool.end_time) == (1_500_000_000, 2_500_000_000)
    assert trace.parse_traceparent(inner).span_id == tool.context.span_id


def test_an_exception_marks_the_span_failed(spans):
    with pytest.raises(ValueError, match="no"), trace.start_span(names.SPAN_TOOL, parent=PARENT):
        raise ValueError("no")
    assert spans()[names.SPAN_TOOL].status.status_code is StatusCode.ERROR


def test_the_root_gets_exactly_the_ids_that_its_children_already_use(spans):
    traceparent = trace.trajectory_traceparent("run", key())
    trace.record_span(names.SPAN_QUEUE_PUT, parent=traceparent, start_time=1, end_time=2)
    with trace.use_traceparent(PARENT):
        trace.record_root(
            names.SPAN_TRAJECTORY, traceparent=traceparent, start_time=1, end_time=2, failure="reward_timeout"
        )
    root, child = spans()[names.SPAN_TRAJECTORY], spans()[names.SPAN_QUEUE_PUT]
    assert root.parent is None
    assert trace.format_traceparent(root.context) == traceparent
    assert child.parent.span_id == root.context.span_id
    assert root.status.description == "reward_timeout"


def test_a_span_that_seems_to_end_before_it_began_ends_where_it_began(spans):
    trace.record_span(names.SPAN_TASK_WAIT, parent=PARENT, start_time=2, end_time=1)
    span = spans()[names.SPAN_TASK_WAIT]
    assert span.end_time == span.start_time


def test_a_trajectory_is_kept_or_left_out_as_a_whole():
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry("test", exporters=[exporter], sample_ratio=0.25)
    kept = 0
    for member in range(400):
        traceparent = trace.trajectory_traceparent("run", key(member))
        kept += traceparent.endswith("01")
        trace.record_span(names.SPAN_QUEUE_PUT, parent=traceparent, start_time=1, end_time=2)
        trace.record_root(names.SPAN_TRAJECTORY, traceparent=traceparent, start_time=1, end_time=2)
    trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=1, end_time=2)
    telemetry.shutdown()
    seen = [span.name for span in exporter.get_finished_spans()]
    assert seen.count(names.SPAN_QUEUE_PUT) == seen.count(names.SPAN_TRAJECTORY) == kept
    assert 60 < kept < 140
    assert seen.count(names.SPAN_TRAIN_STEP) == 1


def test_ids_do_not_depend_on_a_seed(spans):
    ids = []
    for _ in range(2):
        random.seed(0)
        ids.append(trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=1, end_time=2))
    assert ids[0] != ids[1]
    assert spans()


def test_without_set_up_nothing_is_recorded_and_context_still_passes():
    with trace.start_span(names.SPAN_GENERATE, parent=PARENT):
        assert trace.current_traceparent() == PARENT
    assert trace.record_span(names.SPAN_TOOL, parent=PARENT, start_time=1, end_time=2) == PARENT
