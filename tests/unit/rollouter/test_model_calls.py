import asyncio
import dataclasses

import numpy as np
import pytest

from services.common.errors import InternalError, InvalidInputError
from services.common.types import FailureReason, SamplingParams, VersionSpan
from services.rollouter.agents.port import AttemptFailedError
from services.rollouter.model_calls import ModelCalls
from tests.unit.rollouter.fakes import REPLICA, FakeEngine, make_assignment, make_generation

SAMPLING = SamplingParams(max_new_tokens=4)


def make_calls(engine):
    return ModelCalls(engine, make_assignment(), replica_id=REPLICA, adoption_time=lambda _version: 1001.0)


async def test_each_call_has_its_own_id_and_is_counted():
    engine = FakeEngine()
    calls = make_calls(engine)
    await calls.generate((1,), sampling=SAMPLING, seed=9)
    await calls.generate((1, 2), sampling=SAMPLING, seed=9)
    assert [request.request_id for request in engine.requests] == ["train/00000000/0/0/0#0", "train/00000000/0/0/0#1"]
    assert [request.seed for request in engine.requests] == [9, 9]
    assert calls.num_tokens == 4


async def test_the_oldest_version_counts_running_and_finished_calls():
    engine = FakeEngine(version=7)
    calls = make_calls(engine)
    assert calls.oldest_version({}) is None
    engine.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(calls.generate((1,), sampling=SAMPLING, seed=1))
        await asyncio.sleep(0)
        assert calls.oldest_version(engine.oldest_versions()) == 7
        engine.answers = [make_generation(versions=(5, 7))]
        engine.gate.set()
    assert calls.oldest_version({}) == 5
    assert calls.oldest_version({"another": 1}) == 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (InvalidInputError("too long"), FailureReason.PROMPT_TOO_LONG),
        (InternalError("not finite"), FailureReason.ENGINE_ERROR),
        (RuntimeError("a bug"), FailureReason.ENGINE_ERROR),
        (make_generation(logprob=float("nan")), FailureReason.ENGINE_ERROR),
        (make_generation(num_tokens=0, versions=()), FailureReason.ENGINE_ERROR),
        (dataclasses.replace(make_generation(), logprobs=np.zeros(1, np.float32)), FailureReason.ENGINE_ERROR),
        (
            dataclasses.replace(make_generation(), version_spans=(VersionSpan(start=1, end=2, version=0),)),
            FailureReason.ENGINE_ERROR,
        ),
    ],
)
async def test_failures_of_the_engine_have_names(answer, reason):
    engine = FakeEngine()
    engine.answers = [answer]
    with pytest.raises(AttemptFailedError) as failed:
        await make_calls(engine).generate((1,), sampling=SAMPLING, seed=1)
    assert failed.value.failure.reason is reason
