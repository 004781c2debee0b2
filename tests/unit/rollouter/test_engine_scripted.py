import asyncio
import time
from contextlib import aclosing

import pytest

from services.common.config.serving import EngineSection
from services.common.errors import ConflictError, InvalidInputError, UnavailableError
from services.common.types import EndReason, Message, SamplingParams, VersionSpan
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.script import Script
from services.rollouter.engine.scripted import ScriptedEngine

REPLY = "abcdefghi"


def make_engine(*, max_slots=64, **script):
    script = {"default_replies": (REPLY,), **script}
    return ScriptedEngine(EngineSection(kind="scripted", max_slots=max_slots), Script(**script))


def make_request(engine, name="a", *, text="hello", seed=0, max_new_tokens=100):
    return GenerationRequest(
        request_id=name,
        prompt_ids=engine.render((Message(role="user", content=text),)),
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
        seed=seed,
    )


async def test_it_plays_the_script_and_takes_the_time_the_script_says():
    engine = make_engine(seconds_per_token=0.01, prefill_seconds=0.05)
    began = time.perf_counter()
    generation = await engine.generate(make_request(engine))
    assert 0.15 <= time.perf_counter() - began < 0.5
    assert (generation.text, generation.end_reason) == (REPLY, EndReason.STOP)
    assert len(generation.token_ids) == len(generation.logprobs) == 10
    assert generation.version_spans == (VersionSpan(start=0, end=10, version=-1),)
    assert engine.decode(generation.token_ids.tolist()) == REPLY
    assert engine.busy_slots == 0


async def test_many_requests_take_as_long_as_one():
    engine = make_engine(seconds_per_token=0.01)
    began = time.perf_counter()
    await asyncio.gather(*(engine.generate(make_request(engine, str(index))) for index in range(64)))
    assert time.perf_counter() - began < 0.4


async def test_requests_beyond_the_slots_wait():
    engine = make_engine(max_slots=2, seconds_per_token=0.005)
    began = time.perf_counter()
    await asyncio.gather(*(engine.generate(make_request(engine, str(index))) for index in range(6)))
    assert time.perf_counter() - began >= 0.15


async def test_running_requests_go_on_under_a_new_version_and_tokens_say_so():
    engine = make_engine(seconds_per_token=0.02)
    running = asyncio.ensure_future(engine.generate(make_request(engine)))
    await asyncio.sleep(0.09)
    await engine.adopt(5, "digest", {}, keep_running=True)
    assert (engine.policy_version, engine.policy_digest) == (5, "digest")
    spans = (await running).version_spans
    assert [span.version for span in spans] == [-1, 5]
    assert (spans[0].start, spans[0].end, spans[1].end) == (0, spans[1].start, 10)


async def test_without_keeping_them_the_swap_waits_for_running_requests_and_starts_no_other():
    engine = make_engine(seconds_per_token=0.01)
    first = asyncio.ensure_future(engine.generate(make_request(engine, "first")))
    await asyncio.sleep(0.02)
    adoption = asyncio.ensure_future(engine.adopt(5, "digest", {}, keep_running=False))
    await asyncio.sleep(0.01)
    second = asyncio.ensure_future(engine.generate(make_request(engine, "second")))
    await asyncio.sleep(0.01)
    assert engine.oldest_versions() == {"first": -1}
    await adoption
    assert [span.version for span in (await first).version_spans] == [-1]
    assert [span.version for span in (await second).version_spans] == [5]


async def test_a_withdrawn_adoption_lets_waiting_requests_start_under_the_old_version():
    engine = make_engine(seconds_per_token=0.02)
    first = asyncio.ensure_future(engine.generate(make_request(engine, "first")))
    await asyncio.sleep(0.01)
    adoption = asyncio.ensure_future(engine.adopt(5, "digest", {}, keep_running=False))
    await asyncio.sleep(0.01)
    adoption.cancel()
    second = await engine.generate(make_request(engine, "second"))
    assert second.version_spans[0].version == -1
    await first


async def test_a_cancelled_request_frees_its_slot():
    engine = make_engine(max_slots=1, seconds_per_token=10.0)
    task = asyncio.ensure_future(engine.generate(make_request(engine)))
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(engine.generate(make_request(engine, "b")))
    await asyncio.sleep(0.01)
    assert (engine.busy_slots, list(engine.oldest_versions())) == (2, ["a"])
    task.cancel()
    await asyncio.sleep(0.01)
    assert (engine.busy_slots, list(engine.oldest_versions())) == (1, ["b"])
    waiting.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)


async def test_a_stream_grows_and_its_pieces_are_the_generation():
    engine = make_engine(seconds_per_token=0.02)
    async with aclosing(engine.stream(make_request(engine))) as stream:
        chunks = [chunk async for chunk in stream]
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == REPLY
    assert sum(len(chunk.token_ids) for chunk in chunks) == 10
    assert [chunk.end_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_a_stopped_engine_fails_what_it_holds():
    engine = make_engine(max_slots=1, seconds_per_token=10.0)
    tasks = [asyncio.ensure_future(engine.generate(make_request(engine, str(index)))) for index in range(2)]
    await asyncio.sleep(0.01)
    await engine.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [UnavailableError, UnavailableError]
    with pytest.raises(UnavailableError):
        await engine.generate(make_request(engine))


async def test_requests_are_checked():
    engine = make_engine(context_length=25)
    with pytest.raises(InvalidInputError, match="context 25"):
        await engine.generate(make_request(engine, text="long" * 20))
    # The context leaves less room than the reply wants.
    assert (await engine.generate(make_request(engine, text="hi"))).end_reason is EndReason.LENGTH


async def test_an_id_that_is_held_is_refused():
    # Long enough that the first request is still held, however late this process is scheduled.
    engine = make_engine(seconds_per_token=10.0)
    running = asyncio.ensure_future(engine.generate(make_request(engine)))
    while not engine.busy_slots:
        await asyncio.sleep(0)
    with pytest.raises(ConflictError, match="'a'"):
        await engine.generate(make_request(engine))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
