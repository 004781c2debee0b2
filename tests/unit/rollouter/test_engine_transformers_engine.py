import asyncio
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from services.common.config.learning import ModelSection
from services.common.config.serving import EngineSection
from services.common.errors import (
    ConfigError,
    ConflictError,
    CorruptDataError,
    InternalError,
    InvalidInputError,
    UnavailableError,
)
from services.common.types import EndReason
from services.rollouter.engine.transformers_engine import TransformersEngine
from tests.unit.rollouter.engine_models import make_request, running_engine, tiny_model, weights_that_say


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def versions_of(generation):
    return [span.version for span in generation.version_spans]


def assert_covers(generation):
    assert len(generation.token_ids) == len(generation.logprobs)
    edges = [(span.start, span.end) for span in generation.version_spans]
    assert edges[0][0] == 0
    assert edges[-1][1] == len(generation.token_ids)
    assert all(left[1] == right[0] for left, right in pairwise(edges))


async def test_log_probs_are_those_of_the_models_plain_forward():
    async with running_engine() as engine:
        requests = [make_request(engine, index, max_new_tokens=20, temperature=0.8) for index in range(5)]
        generations = await asyncio.gather(*map(engine.generate, requests))
    model = tiny_model()
    for request, generation in zip(requests, generations, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *generation.token_ids.tolist()]])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        logp = torch.log_softmax(logits.float() / 0.8, dim=-1)
        expected = logp.gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0]
        assert np.allclose(generation.logprobs, expected, atol=1e-4)
        assert_covers(generation)
    assert len({tuple(generation.token_ids.tolist()) for generation in generations}) == 5


async def test_a_greedy_completion_is_the_most_likely_one():
    async with running_engine() as engine:
        request = make_request(engine, 0, max_new_tokens=8, temperature=0.0)
        generation = await engine.generate(request)
    model = tiny_model()
    ids = list(request.prompt_ids)
    for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True):
        with torch.inference_mode():
            assert model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item() == token
        assert logprob == 0.0
        ids.append(int(token))


@pytest.mark.parametrize("deterministic", [False, True])
async def test_the_same_seed_gives_the_same_completion(deterministic):
    async with running_engine(deterministic=deterministic) as engine:
        first = await engine.generate(make_request(engine, 0, seed=5))
        second = await engine.generate(make_request(engine, 1, seed=5))
        other = await engine.generate(make_request(engine, 2, seed=6))
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert first.token_ids.tolist() != other.token_ids.tolist()


async def test_a_deterministic_completion_has_the_same_bits_alone_and_among_twenty():
    async with running_engine(deterministic=True, max_slots=32) as engine:
        request = make_request(engine, 0, max_new_tokens=24)
        alone = await engine.generate(request)
        others = [
            make_request(engine, index, text="what " * (index % 7), max_new_tokens=6 + index, top_k=index % 3)
            for index in range(1, 21)
        ]
        tasks = [asyncio.ensure_future(engine.generate(other)) for other in others[:10]]
        await until(lambda: len(engine.oldest_versions()) >= 5)
        among = asyncio.ensure_future(engine.generate(replace(request, request_id="again")))
        tasks += [asyncio.ensure_future(engine.generate(other)) for other in others[10:]]
        await asyncio.gather(*tasks)
        among = await among
    assert alone.token_ids.tobytes() == among.token_ids.tobytes()
    assert alone.logprobs.tobytes() == among.logprobs.tobytes()


async def test_members_of_a_group_share_their_prompt_and_differ_by_seed():
    async with running_engine() as engine:
        generations = await asyncio.gather(*(engine.generate(make_request(engine, index)) for index in range(8)))
        again = await engine.generate(make_request(engine, 3))
    assert len({tuple(generation.token_ids.tolist()) for generation in generations}) == 8
    assert again.token_ids.tolist() == generations[3].token_ids.tolist()


async def test_an_end_token_ends_the_completion_and_is_part_of_the_ids_not_of_the_text():
    async with running_engine() as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        by_length = await engine.generate(make_request(engine, 0, max_new_tokens=5))
        by_token = await engine.generate(make_request(engine, 1, stop_token_ids=(letter,)))
        by_string = await engine.generate(make_request(engine, 2, stop=("www",)))
        end_id = tiny_model().generation_config.eos_token_id[0]
        await engine.adopt(2, "end", weights_that_say(end_id), keep_running=True)
        by_end = await engine.generate(make_request(engine, 3))
    assert (by_length.text, by_length.end_reason) == ("wwwww", EndReason.LENGTH)
    assert (by_token.text, by_token.token_ids.tolist(), by_token.end_reason) == ("", [letter], EndReason.STOP)
    assert (by_string.text, by_string.token_ids.tolist(), by_string.end_reason) == ("", [letter] * 3, EndReason.STOP)
    assert (by_end.text, by_end.token_ids.tolist(), by_end.end_reason) == ("", [end_id], EndReason.STOP)


async def test_the_context_ends_a_completion():
    async with running_engine(max_context=40) as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        request = make_request(engine, 0, max_new_tokens=1000)
        generation = await engine.generate(request)
        assert len(request.prompt_ids) + len(generation.token_ids) == 40
        assert generation.end_reason is EndReason.LENGTH
        with pytest.raises(InvalidInputError, match="context 40"):
            await engine.generate(replace(request, prompt_ids=(5,) * 40))


@pytest.mark.parametrize("deterministic", [False, True])
async def test_running_requests_go_on_under_new_weights_and_say_which_sampled_what(deterministic):
    async with running_engine(deterministic=deterministic) as engine:
        first, second = engine.encode("w")[0], engine.encode("h")[0]
        await engine.adopt(1, "w", weights_that_say(first), keep_running=True)
        running = [
            asyncio.ensure_future(engine.generate(make_request(engine, index, max_new_tokens=90)))
            for index in range(20)
        ]
        await until(lambda: len(engine.oldest_versions()) == 8)
        pause = await engine.adopt(2, "h", weights_that_say(second), keep_running=True)
        assert (engine.policy_version, engine.policy_digest) == (2, "h")
        assert set(engine.oldest_versions().values()) == {1}
        generations = await asyncio.gather(*running)
    assert 0.0 < pause < 0.05
    by_version = {1: first, 2: second}
    for generation in generations:
        assert_covers(generation)
        for span in generation.version_spans:
            assert set(generation.token_ids[span.start : span.end].tolist()) == {by_version[span.version]}
    assert {tuple(versions_of(generation)) for generation in generations} == {(1, 2), (2,)}


async def test_without_keeping_them_the_swap_waits_and_nothing_starts_under_the_old_version():
    async with running_engine() as engine:
        first, second = engine.encode("w")[0], engine.encode("h")[0]
        await engine.adopt(1, "w", weights_that_say(first), keep_running=True)
        early = [asyncio.ensure_future(engine.generate(make_request(engine, i, max_new_tokens=60))) for i in range(4)]
        await until(lambda: len(engine.oldest_versions()) == 4)
        adoption = asyncio.ensure_future(engine.adopt(2, "h", weights_that_say(second), keep_running=False))
        await asyncio.sleep(0)
        late = [asyncio.ensure_future(engine.generate(make_request(engine, i))) for i in range(4, 8)]
        await adoption
        early, late = await asyncio.gather(*early), await asyncio.gather(*late)
    assert all(versions_of(generation) == [1] and generation.text == "w" * 60 for generation in early)
    assert all(versions_of(generation) == [2] and generation.text == "h" * 12 for generation in late)


async def test_a_failed_adoption_leaves_the_old_version_serving_and_nothing_paused():
    async with running_engine() as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        broken = weights_that_say(letter + 1)
        broken["model.norm.weight"] = torch.zeros(3)
        for keep_running in (True, False):
            with pytest.raises(CorruptDataError):
                await engine.adopt(2, "x", broken, keep_running=keep_running)
            generation = await engine.generate(make_request(engine, 0))
            assert (generation.text, versions_of(generation)) == ("w" * 12, [1])
        assert (engine.policy_version, engine.policy_digest) == (1, "w")


async def test_a_cancelled_adoption_leaves_the_old_version_serving_and_nothing_paused():
    async with running_engine() as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        running = asyncio.ensure_future(engine.generate(make_request(engine, 0, max_new_tokens=100)))
        await until(engine.oldest_versions)
        adoption = asyncio.ensure_future(engine.adopt(2, "x", weights_that_say(letter + 1), keep_running=False))
        await asyncio.sleep(0.01)
        adoption.cancel()
        await asyncio.gather(adoption, return_exceptions=True)
        assert versions_of(await engine.generate(make_request(engine, 1))) == [1]
        await running


async def test_weights_with_nan_fail_requests_and_the_next_version_heals():
    async with running_engine() as engine:
        (letter,) = engine.encode("w")
        good = weights_that_say(letter)
        bad = {name: torch.full_like(tensor, torch.nan) for name, tensor in good.items()}
        await engine.adopt(1, "bad", bad, keep_running=True)
        failures = await asyncio.gather(
            *(engine.generate(make_request(engine, index)) for index in range(4)), return_exceptions=True
        )
        assert [type(failure) for failure in failures] == [InternalError] * 4
        await engine.adopt(2, "good", good, keep_running=True)
        generations = await asyncio.gather(*(engine.generate(make_request(engine, index)) for index in range(8)))
    assert {generation.text for generation in generations} == {"w" * 12}


async def test_a_cancelled_request_frees_its_slot():
    async with running_engine(max_slots=1) as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        first = asyncio.ensure_future(engine.generate(make_request(engine, 0, max_new_tokens=1000)))
        second = asyncio.ensure_future(engine.generate(make_request(engine, 1)))
        await until(engine.oldest_versions)
        assert engine.busy_slots == 2
        first.cancel()
        assert len((await second).token_ids) == 12
        assert engine.busy_slots == 0


async def test_a_stream_joined_is_the_generation():
    async with running_engine() as engine:
        request = make_request(engine, 0, max_new_tokens=60)
        whole = await engine.generate(request)
        async with aclosing(engine.stream(request)) as stream:
            chunks = [chunk async for chunk in stream]
    assert np.concatenate([chunk.token_ids for chunk in chunks]).tolist() == whole.token_ids.tolist()
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[-1].end_reason is whole.end_reason
    assert chunks[0].version_spans[0].start == 0


async def test_a_closed_stream_frees_its_slot():
    async with running_engine() as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        async with aclosing(engine.stream(make_request(engine, 0, max_new_tokens=100))) as stream:
            await anext(stream)
        await until(lambda: not engine.oldest_versions())
        assert engine.busy_slots == 0


async def test_one_id_is_held_once():
    async with running_engine() as engine:
        first = asyncio.ensure_future(engine.generate(make_request(engine, 0)))
        await asyncio.sleep(0)
        with pytest.raises(ConflictError, match="request/0"):
            await engine.generate(make_request(engine, 0))
        await first


async def test_a_stopped_engine_fails_what_it_holds_and_refuses_the_rest():
    async with running_engine(max_slots=2) as engine:
        (letter,) = engine.encode("w")
        await engine.adopt(1, "w", weights_that_say(letter), keep_running=True)
        tasks = [asyncio.ensure_future(engine.generate(make_request(engine, i, max_new_tokens=99))) for i in range(4)]
        await until(engine.oldest_versions)
        await engine.stop()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert UnavailableError in {type(result) for result in results}
        with pytest.raises(UnavailableError):
            await engine.generate(make_request(engine, 9))
        with pytest.raises(UnavailableError):
            await engine.adopt(2, "x", weights_that_say(letter), keep_running=False)


async def test_an_engine_that_is_not_started_says_so(tmp_path):
    engine = TransformersEngine(EngineSection(), ModelSection(path=str(tmp_path)))
    with pytest.raises(UnavailableError, match="not started"):
        engine.render(())
    with pytest.raises(UnavailableError, match="not started"):
        await engine.adopt(1, "x", {}, keep_running=True)
    assert (engine.policy_version, engine.policy_digest, engine.oldest_versions()) == (-1, "", {})
    await engine.stop()
    with pytest.raises(ConfigError):
        await engine.start()
