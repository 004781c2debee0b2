import numpy as np

from services.common.types import EndReason, SamplingParams, VersionSpan
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.slots import Occupant, SlotTable

END = 2


def make_table():
    return SlotTable(max_slots=4, context_length=100, end_ids=(END, 5000), vocabulary_size=50)


def occupant(name="a", *, prompt=(1, 2, 3), **sampling):
    params = SamplingParams(**{"max_new_tokens": 10, **sampling})
    request = GenerationRequest(request_id=name, prompt_ids=prompt, sampling=params, seed=7)
    return Occupant(request=request, deliver=[].append, stops=None, text_stream=None)


def record(table, tokens, logprobs=None):
    logprobs = np.full(len(tokens), -1.0, dtype=np.float32) if logprobs is None else np.array(logprobs, np.float32)
    return table.record(slice(0, len(tokens)), np.array(tokens), logprobs)


def test_inputs_are_the_newest_tokens_at_their_positions():
    table = make_table()
    table.add(occupant(prompt=(1, 2, 3)), 0)
    table.add(occupant("b", prompt=(4,)), 0)
    record(table, [10, 11])
    record(table, [12, 13])
    tokens, positions = table.inputs()
    assert tokens.tolist() == [12, 13]
    assert positions.tolist() == [4, 2]
    assert table.sampling(slice(0, 2)).positions.tolist() == [5, 3]


def test_a_row_ends_at_its_token_limit():
    table = make_table()
    table.add(occupant(max_new_tokens=2), 0)
    assert record(table, [10]) == []
    assert record(table, [10]) == [0]
    assert table.end_reason(0) is EndReason.LENGTH


def test_a_row_ends_where_the_context_ends():
    table = make_table()
    table.add(occupant(prompt=(1,) * 98, max_new_tokens=10), 0)
    assert record(table, [10]) == []
    assert record(table, [10]) == [0]
    assert table.end_reason(0) is EndReason.LENGTH


def test_end_tokens_of_the_model_and_of_the_request_end_a_row():
    table = make_table()
    table.add(occupant(), 0)
    table.add(occupant("b", stop_token_ids=(9,)), 0)
    assert record(table, [9, 10]) == [1]
    assert table.end_reason(1) is None
    assert record(table, [END, 9]) == [0, 1]
    assert table.end_reason(0) is EndReason.STOP
    assert table.end_reason(1) is EndReason.STOP
    assert table.ends_with_token(0)


def test_an_end_token_at_the_limit_is_a_stop():
    table = make_table()
    table.add(occupant(max_new_tokens=1), 0)
    assert record(table, [END]) == [0]
    assert table.end_reason(0) is EndReason.STOP


def test_the_last_row_fills_a_hole_with_all_it_has():
    table = make_table()
    for name in ("a", "b", "c"):
        table.add(occupant(name), 0)
    record(table, [10, 11, 12])
    table.remove(0)
    assert [row.request.request_id for row in table.occupants] == ["c", "b"]
    assert table.inputs()[0].tolist() == [12, 11]
    assert table.sampled(0, 0)[0].tolist() == [12]


def test_a_row_outgrows_its_first_block_of_tokens():
    table = SlotTable(max_slots=1, context_length=1000, end_ids=(), vocabulary_size=50)
    table.add(occupant(max_new_tokens=500), 0)
    for token in range(200):
        record(table, [token % 50])
    assert table.sampled(0, 0)[0].tolist() == [token % 50 for token in range(200)]


def test_broken_rows_are_candidates_and_known_as_broken():
    table = make_table()
    table.add(occupant(), 0)
    table.add(occupant("b"), 0)
    assert record(table, [10, 10], [-1.0, np.nan]) == [1]
    assert not table.is_broken(0)
    assert table.is_broken(1)


def test_version_spans_cover_the_tokens_without_empty_ones():
    table = make_table()
    table.add(occupant(), 3)
    record(table, [10])
    record(table, [10])
    table.change_version(4)
    table.change_version(5)
    record(table, [10])
    row = table.occupants[0]
    assert row.spans(0, 3) == (VersionSpan(start=0, end=2, version=3), VersionSpan(start=2, end=3, version=5))
    assert row.spans(1, 2) == (VersionSpan(start=1, end=2, version=3),)
    assert row.spans(2, 3) == (VersionSpan(start=2, end=3, version=5),)
