import dataclasses

import pytest

from services.common.errors import OverloadedError, ScoringFailedError, UnavailableError
from services.common.types import EndReason, FailedMember, FailureReason, VersionSpan
from services.rollouter.agents.port import Attempt
from services.rollouter.model_calls import ModelCalls
from tests.factories import make_row
from tests.unit.rollouter.fakes import (
    REPLICA,
    RUN,
    TRACEPARENT,
    FakeEngine,
    FakeScorer,
    make_assignment,
    make_generation,
    make_runner,
)


async def attempt(engine=None, *, scorer=None, agent=None, assignment=None):
    assignment = assignment or make_assignment(7, 1)
    calls = ModelCalls(engine or FakeEngine(), assignment, replica_id=REPLICA, adoption_time=lambda _version: None)
    return await make_runner(scorer, agent).run(assignment, calls, on_generated=lambda: None)


async def test_a_trajectory_says_where_it_came_from():
    engine, scorer = FakeEngine(), FakeScorer(reward=0.25)
    engine.answers = [make_generation("8", num_tokens=4, versions=(3, 5), end_reason=EndReason.LENGTH)]
    trajectory = await attempt(engine, scorer=scorer)
    assert str(trajectory.key) == "train/00000007/0/1"
    assert (trajectory.lease_id, trajectory.replica_id) == ("train/00000007/0/1/0", REPLICA)
    assert (trajectory.oldest_version, trajectory.newest_version) == (3, 5)
    assert (trajectory.completion, trajectory.end_reason) == ("8", EndReason.LENGTH)
    assert (trajectory.score.reward, trajectory.traceparent, trajectory.sequence) == (0.25, TRACEPARENT, 7)
    assert trajectory.metrics["wait_seconds"] == 0.5
    assert trajectory.metrics["num_tokens"] == 4
    assert trajectory.metrics["generate_seconds"] >= 0
    assert trajectory.metrics["reward_seconds"] >= 0
    assert trajectory.end_time >= trajectory.start_time
    request, _, traceparent = scorer.requests[0]
    assert (request.run_id, request.trajectory_id, request.completion) == (RUN, trajectory.lease_id, "8")
    assert traceparent == TRACEPARENT


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnavailableError("away"), FailureReason.REWARD_UNAVAILABLE),
        (OverloadedError("full"), FailureReason.REWARD_UNAVAILABLE),
        (ScoringFailedError("late", failure_reason="reward_timeout"), FailureReason.REWARD_TIMEOUT),
        (ScoringFailedError("raised"), FailureReason.REWARD_ERROR),
        (ValueError("a bug"), FailureReason.REWARD_ERROR),
    ],
)
async def test_a_missing_score_is_a_named_failure_and_never_a_reward(error, reason):
    result = await attempt(scorer=FakeScorer(error=error))
    assert isinstance(result, FailedMember)
    assert result.failure.reason is reason


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1.7e308, -1e39])
async def test_a_reward_that_is_no_number_or_beyond_its_bound_is_a_failure_that_says_so(reward):
    result = await attempt(scorer=FakeScorer(reward=reward))
    assert result.failure.reason is FailureReason.REWARD_ERROR
    assert f"gave {reward:g}" in result.failure.message
    assert "from -1e+06 to 1e+06" in result.failure.message


@pytest.mark.parametrize("reward", [1e6, -1e6])
async def test_a_reward_at_its_bound_is_a_reward(reward):
    assert (await attempt(scorer=FakeScorer(reward=reward))).score.reward == reward


async def test_an_agent_that_raises_is_an_agent_error():
    class Broken:
        async def run(self, task, key, model):
            raise KeyError("tool")

    result = await attempt(agent=Broken())
    assert result.failure.reason is FailureReason.AGENT_ERROR
    assert "KeyError" in result.failure.message


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (dataclasses.replace(make_row(), version_spans=()),),
        (dataclasses.replace(make_row(), version_spans=(VersionSpan(start=3, end=4, version=0),)),),
    ],
)
async def test_rows_that_do_not_add_up_are_an_agent_error(rows):
    class Odd:
        async def run(self, task, key, model):
            return Attempt(rows=rows, completion="", end_reason=EndReason.STOP)

    assert (await attempt(agent=Odd())).failure.reason is FailureReason.AGENT_ERROR


async def test_a_prompt_without_room_says_so():
    assignment = make_assignment(0)
    engine = FakeEngine()
    engine.context_length = 4
    result = await attempt(engine, assignment=assignment)
    assert result.failure.reason is FailureReason.PROMPT_TOO_LONG
    assert "5 tokens and the context 4" in result.failure.message
