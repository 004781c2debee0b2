import asyncio

import pytest

from services.common.errors import (
    ConflictError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    ScoringFailedError,
    UnavailableError,
)
from services.reward.desk import ScoreDesk
from services.reward.pool import WorkerPool
from tests.unit.reward.builders import config, named, request, running_desk


def scored(log):
    return log.read_text().count("scored") if log.exists() else 0


def slow(log, trajectory="t", seconds=0.5, **changes):
    return request(
        trajectory=trajectory, scorer=named("slow"), metadata={"seconds": seconds, "log": str(log)}, **changes
    )


async def test_a_score_says_which_rule_gave_it():
    async with running_desk(config("length")) as (desk, _):
        score = await desk.score(request(), timeout_seconds=10)
        assert (score.reward, score.scorer, score.scorer_version) == (1.0, "exact_match", "1")
        score = await desk.score(request("12345", trajectory="b", scorer=named("length")), timeout_seconds=10)
        assert (score.reward, score.scorer) == (5.0, named("length"))
        assert len(score.scorer_version) == 12


async def test_the_same_request_is_scored_once_also_while_it_runs(tmp_path):
    log = tmp_path / "log"
    async with running_desk(config("slow")) as (desk, _):
        again = [desk.score(slow(log), timeout_seconds=10) for _ in range(5)]
        scores = await asyncio.gather(*again)
        scores.append(await desk.score(slow(log), timeout_seconds=10))
        assert {score.reward for score in scores} == {0.5}
        assert scored(log) == 1


async def test_other_content_under_the_same_id_is_refused():
    async with running_desk(config()) as (desk, _):
        await desk.score(request("4"), timeout_seconds=10)
        with pytest.raises(ConflictError, match="other content"):
            await desk.score(request("5"), timeout_seconds=10)
        with pytest.raises(ConflictError):
            await desk.score(request("4", answer="5"), timeout_seconds=10)
        with pytest.raises(ConflictError):
            await desk.score(request("4", scorer="numeric"), timeout_seconds=10)


@pytest.mark.parametrize(("function", "reason"), [("raises", "reward_error"), ("dies", "reward_error")])
async def test_a_failure_carries_its_reason_and_is_remembered(function, reason):
    async with running_desk(config(function)) as (desk, pool):
        for _ in range(2):
            with pytest.raises(ScoringFailedError) as caught:
                await desk.score(request(scorer=named(function)), timeout_seconds=10)
            assert caught.value.metadata["failure_reason"] == reason
            pids = pool.pids
        assert pool.pids == pids


async def test_a_score_past_its_limit_is_a_timeout_and_no_zero():
    async with running_desk(config("holds_the_interpreter", timeout_seconds=0.5)) as (desk, _):
        with pytest.raises(ScoringFailedError) as caught:
            await desk.score(request(scorer=named("holds_the_interpreter")), timeout_seconds=10)
        assert caught.value.metadata["failure_reason"] == "reward_timeout"


async def test_a_caller_who_leaves_finds_the_score_later(tmp_path):
    log = tmp_path / "log"
    async with running_desk(config("slow")) as (desk, _):
        with pytest.raises(DeadlineError, match=r"0\.2 s"):
            await desk.score(slow(log), timeout_seconds=0.2)
        assert (await desk.score(slow(log), timeout_seconds=10)).reward == 0.5
        assert scored(log) == 1


async def test_what_nobody_waits_for_any_more_is_not_scored(tmp_path):
    log = tmp_path / "log"
    async with running_desk(config("slow", max_pending=2)) as (desk, pool):
        running = asyncio.create_task(desk.score(slow(log, "a", 1.0), timeout_seconds=10))
        await asyncio.sleep(0.2)
        with pytest.raises(DeadlineError):
            await desk.score(slow(log, "b"), timeout_seconds=0.1)
        assert pool.pending == 1
        assert (await desk.score(request(trajectory="c"), timeout_seconds=10)).reward == 1.0
        await running
        assert scored(log) == 1
        assert (await desk.score(slow(log, "b"), timeout_seconds=10)).reward == 0.5


async def test_more_than_the_bound_is_refused_and_can_come_again(tmp_path):
    log = tmp_path / "log"
    async with running_desk(config("slow", max_pending=1)) as (desk, _):
        running = asyncio.create_task(desk.score(slow(log), timeout_seconds=10))
        await asyncio.sleep(0.1)
        with pytest.raises(OverloadedError, match="1 of 1"):
            await desk.score(request(trajectory="b"), timeout_seconds=10)
        await running
        assert (await desk.score(request(trajectory="b"), timeout_seconds=10)).reward == 1.0


async def test_a_request_cannot_choose_what_is_imported():
    async with running_desk(config()) as (desk, _):
        with pytest.raises(NotFoundError, match=r"reward\.python_scorers"):
            await desk.score(request(scorer="python:antigravity:fly"), timeout_seconds=10)
        with pytest.raises(NotFoundError, match="did you mean 'exact_match'"):
            await desk.score(request(scorer="exactmatch"), timeout_seconds=10)


async def test_nothing_is_scored_before_the_start_or_without_names():
    desk = ScoreDesk(config(), WorkerPool(config()))
    with pytest.raises(UnavailableError, match="starting"):
        await desk.score(request(), timeout_seconds=1)
    async with running_desk(config()) as (desk, _):
        with pytest.raises(InvalidInputError, match="trajectory_id"):
            await desk.score(request(trajectory=""), timeout_seconds=1)


async def test_the_number_of_remembered_answers_is_bounded():
    async with running_desk(config(max_remembered=3)) as (desk, _):
        for i in range(6):
            await desk.score(request(trajectory=f"t{i}"), timeout_seconds=10)
        with pytest.raises(ConflictError):
            await desk.score(request("5", trajectory="t5"), timeout_seconds=10)
        assert (await desk.score(request("5", trajectory="t0"), timeout_seconds=10)).reward == 0.0


async def test_those_who_wait_when_the_service_stops_are_told_to_retry(tmp_path):
    async with running_desk(config("slow")) as (desk, _):
        waiting = asyncio.create_task(desk.score(slow(tmp_path / "log", seconds=20), timeout_seconds=30))
        await asyncio.sleep(0.2)
    with pytest.raises(UnavailableError, match="stopping"):
        await waiting


async def test_huge_and_strange_texts_are_scored():
    async with running_desk(config()) as (desk, _):
        for i, text in enumerate(["", "x" * 4_000_000, "\u0000\u2028 \u4e2d\U0001f600", "\n" * 100_000]):
            score = await desk.score(request(text, answer=text, trajectory=f"t{i}"), timeout_seconds=20)
            assert score.reward == 1.0


async def test_scorers_are_listed_with_the_users_own():
    async with running_desk(config("length")) as (desk, _):
        names = [info.name for info in desk.list_scorers()]
        assert names == ["exact_match", "numeric", "reasoning_gym", named("length")]
