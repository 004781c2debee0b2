import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common.telemetry import names
from services.common.telemetry.setup import setup_telemetry
from services.trainer.collecting import Batch
from services.trainer.tracing import trace_batch
from tests.factories import make_trajectory
from tests.unit.trainer.fakes import FakeQueue, make_config, make_trainer
from tests.unit.trainer.test_figures import make_group

STEP = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"


@pytest.fixture
def exporter():
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry("trainer", exporters=[exporter])
    exporter.flush = telemetry.flush
    yield exporter
    telemetry.shutdown()


def test_each_trajectory_gets_its_wait_and_the_step_that_used_it(exporter):
    group = make_group(make_trajectory(version=3), make_trajectory(member=1, version=2, reward=0.0))
    batch = Batch(groups=[group], end_of_data=False, lease_time=5.0, num_ready=0)

    trace_batch(batch, advantages=[[0.5, -0.5]], step=4, version=4, step_traceparent=STEP, step_time=6.0)

    exporter.flush()
    spans = exporter.get_finished_spans()
    waits = [span for span in spans if span.name == names.SPAN_QUEUE_WAIT]
    uses = [span for span in spans if span.name == names.SPAN_TRAIN_CONSUME]
    assert len(waits) == len(uses) == 2
    assert {f"{span.context.trace_id:032x}" for span in spans} == {"0123456789abcdef0123456789abcdef"}
    assert [(span.start_time, span.end_time) for span in waits] == [(0, 5_000_000_000)] * 2
    assert [span.attributes[names.STALENESS] for span in uses] == [1, 2]
    assert [span.attributes[names.ADVANTAGE] for span in uses] == [0.5, -0.5]
    assert {f"{span.links[0].context.trace_id:032x}" for span in uses} == {"a" * 32}


async def test_a_step_links_to_its_trajectories_and_each_version_to_the_step_before(tmp_path, exporter):
    await make_trainer(make_config(tmp_path, trainer={"total_steps": 2}), FakeQueue()).loop.run()

    exporter.flush()
    spans = exporter.get_finished_spans()
    steps = [span for span in spans if span.name == names.SPAN_TRAIN_STEP]
    publishes = [span for span in spans if span.name == names.SPAN_POLICY_PUBLISH]
    assert [span.attributes[names.STEP] for span in steps] == [1, 2]
    assert all(len(span.links) == 4 for span in steps)
    assert len({span.context.trace_id for span in (*steps, *publishes)}) == 5
    assert [[link.context.span_id for link in span.links] for span in publishes] == [
        [],
        [steps[0].context.span_id],
        [steps[1].context.span_id],
    ]
