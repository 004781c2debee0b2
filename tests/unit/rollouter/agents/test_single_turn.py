from services.common.seeds import sample_seed
from services.common.types import EndReason, VersionSpan
from services.rollouter.agents.single_turn import SingleTurn, completion_row
from services.rollouter.model_calls import ModelCalls
from tests.unit.rollouter.fakes import REPLICA, FakeEngine, make_assignment, make_generation


def test_a_row_trains_the_completion_and_nothing_else():
    row = completion_row((1, 2, 3), make_generation(num_tokens=4, versions=(5, 6), logprob=-0.25))
    assert row.token_ids.tolist() == [1, 2, 3, 100, 101, 102, 103]
    assert row.loss_mask.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert row.logprobs.tolist() == [0, 0, 0, -0.25, -0.25, -0.25, -0.25]
    assert row.version_spans == (VersionSpan(start=3, end=5, version=5), VersionSpan(start=5, end=7, version=6))
    assert (row.token_ids.dtype, row.loss_mask.dtype, row.logprobs.dtype) == ("int32", "uint8", "float32")


async def test_the_seed_depends_on_run_sequence_and_member_only():
    engine = FakeEngine()
    for replica, issue in (("a", 0), ("b", 3)):
        assignment = make_assignment(12, 3, issue=issue)
        calls = ModelCalls(engine, assignment, replica_id=replica, adoption_time=lambda _version: None)
        await SingleTurn().run(assignment.task, assignment.key, calls)
    assert {request.seed for request in engine.requests} == {sample_seed(1, 12, 3)}


async def test_one_turn_is_one_row():
    engine, assignment = FakeEngine(), make_assignment()
    engine.answers = [make_generation("42", end_reason=EndReason.LENGTH)]
    calls = ModelCalls(engine, assignment, replica_id=REPLICA, adoption_time=lambda _version: None)
    attempt = await SingleTurn().run(assignment.task, assignment.key, calls)
    assert (len(attempt.rows), attempt.completion, attempt.end_reason) == (1, "42", EndReason.LENGTH)
