"""A trajectory is one trace: what a rollouter writes into it."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common.telemetry import names
from services.common.telemetry.setup import setup_telemetry
from services.common.telemetry.trace import parse_traceparent, trajectory_traceparent
from services.common.types import SamplingParams
from services.trainer.tiny_model import TinyModelShape, build_tiny_model
from tests.integration.rollouter_fleet import Fleet
from tests.redis_server import running_server


@pytest.fixture
def exporter():
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry("rollouter", exporters=[exporter])
    yield exporter
    telemetry.shutdown()


@pytest.fixture
def fleet(tmp_path_factory, tmp_path):
    folder = tmp_path_factory.mktemp("model")
    shape = TinyModelShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, max_context_tokens=256)
    build_tiny_model(folder, corpus=["What is 1 + 2?"], seed=0, shape=shape)
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield Fleet(url, folder, tmp_path)


async def test_a_trajectory_is_one_trace_and_an_adoption_another(fleet, exporter):
    async with fleet.queue_service(), fleet.reward_service(), fleet.trainer() as trainer, fleet.rollouter("r0"):
        await trainer.publish(0)
        await trainer.feed(range(2), sampling=SamplingParams(max_new_tokens=4), group_size=2)
        groups = await trainer.take(2)
    setup_telemetry("rollouter", exporters=[]).shutdown()
    spans = exporter.get_finished_spans()
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        root = parse_traceparent(trajectory_traceparent(fleet.run_id, trajectory.key))
        mine = {span.name: span for span in spans if span.context.trace_id == root.trace_id}
        assert set(mine) == {"trajectory", "task.wait", "generate", "reward.score", "queue.put"}
        assert mine["trajectory"].context.span_id == root.span_id
        assert mine["trajectory"].parent is None
        assert {span.parent.span_id for name, span in mine.items() if name != "trajectory"} == {root.span_id}
        assert mine["trajectory"].attributes[names.REWARD] == trajectory.score.reward
        assert mine["generate"].attributes[names.USAGE_OUTPUT_TOKENS] == trajectory.num_sampled_tokens
        assert mine["generate"].attributes[names.POLICY_VERSION_NEWEST] == 0
    (adoption,) = [span for span in spans if span.name == names.SPAN_POLICY_ADOPT]
    assert adoption.parent is None
    assert adoption.attributes[names.POLICY_DIGEST] == trainer.manifests[0].digest
