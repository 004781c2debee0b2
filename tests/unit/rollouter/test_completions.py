from services.common.types import EndReason, SamplingParams
from services.rollouter.completions import stream_completion
from tests.factories import make_task
from tests.unit.rollouter.fakes import FakeEngine, make_generation


async def test_each_piece_is_of_one_version_and_the_last_has_the_text():
    engine = FakeEngine()
    engine.answers = [make_generation("four", num_tokens=4, versions=(1, 2))]
    stream = stream_completion(engine, make_task().messages, SamplingParams(max_new_tokens=4), seed=5)
    pieces = [piece async for piece in stream]
    assert [(piece.token_ids, piece.policy_version) for piece in pieces] == [((100, 101), 1), ((102, 103), 2)]
    assert [(piece.text, piece.end_reason) for piece in pieces] == [("", None), ("four", EndReason.STOP)]
    assert engine.requests[0].seed == 5
