"""The reward service over real gRPC, in this process: what a rollouter sees."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from services.common.clients.reward import RewardClient, failure_of
from services.common.errors import (
    ConflictError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    ScoringFailedError,
    UnavailableError,
)
from services.common.rpc.channel import open_channel
from services.common.rpc.health import check_health
from services.common.scoring import probe_scorer
from services.common.types import FailureReason
from services.reward.server import serve
from tests.unit.reward.builders import config, named, request


@asynccontextmanager
async def running(settings):
    """Run the service in this process and connect to it."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(settings, on_bound=bound.set_result, stop=stop, handle_signals=False))
        async with asyncio.timeout(30):
            address = await bound
        channel = open_channel(address)
        try:
            yield RewardClient(channel), address
        finally:
            await channel.close()
            stop.set()


async def test_a_completion_is_scored():
    async with running(config()) as (client, address):
        assert await check_health(address) == "SERVING"
        score = await client.score(request("4"), timeout_seconds=10)
        assert (score.reward, score.parts, score.scorer, score.scorer_version) == (
            1.0,
            {"correct": 1.0},
            "exact_match",
            "1",
        )


async def test_scorers_are_listed():
    async with running(config("length")) as (client, _):
        infos = {info.name: info for info in await client.list_scorers()}
        assert infos[named("length")].description == "Counts characters."
        assert infos["numeric"].version == "1"


async def test_a_failed_scorer_is_a_failure_with_its_reason():
    async with running(config("dies", "raises", "holds_the_interpreter", timeout_seconds=1.0)) as (client, _):
        reasons = {}
        for function in ("dies", "raises", "holds_the_interpreter"):
            with pytest.raises(ScoringFailedError) as caught:
                await client.score(request(trajectory=function, scorer=named(function)), timeout_seconds=20)
            reasons[function] = failure_of(caught.value).reason
        assert reasons == {
            "dies": FailureReason.REWARD_ERROR,
            "raises": FailureReason.REWARD_ERROR,
            "holds_the_interpreter": FailureReason.REWARD_TIMEOUT,
        }
        assert (await client.score(request("4"), timeout_seconds=10)).reward == 1.0


async def test_mistakes_of_the_caller_keep_their_class():
    async with running(config()) as (client, _):
        await client.score(request("4"), timeout_seconds=10)
        assert (await client.score(request("4"), timeout_seconds=10)).reward == 1.0
        with pytest.raises(ConflictError, match="other content"):
            await client.score(request("5"), timeout_seconds=10)
        with pytest.raises(NotFoundError, match="did you mean 'numeric'"):
            await client.score(request(scorer="numerical"), timeout_seconds=10)
        with pytest.raises(InvalidInputError, match="must not be empty"):
            await client.score(request(trajectory=""), timeout_seconds=10)


async def test_an_overloaded_service_is_asked_again_until_it_has_room(tmp_path):
    settings = config("slow", max_pending=1)
    metadata = {"seconds": 0.4, "log": str(tmp_path / "log")}
    async with running(settings) as (client, _):
        requests = [request(trajectory=f"t{i}", scorer=named("slow"), metadata=metadata) for i in range(3)]
        scores = await asyncio.gather(*(client.score(one, timeout_seconds=20) for one in requests))
        assert [score.reward for score in scores] == [0.5] * 3


async def test_a_deadline_ends_the_wait_and_the_score_is_there_for_a_retry(tmp_path):
    async with running(config("slow")) as (client, _):
        slow = request(scorer=named("slow"), metadata={"seconds": 1.0, "log": str(tmp_path / "log")})
        with pytest.raises(DeadlineError) as caught:
            await client.score(slow, timeout_seconds=0.3)
        assert failure_of(caught.value).reason is FailureReason.REWARD_UNAVAILABLE
        assert (await client.score(slow, timeout_seconds=10)).reward == 0.5
        assert (tmp_path / "log").read_text() == "scored\n"


async def test_a_service_that_is_away_is_unavailable():
    async with running(config()) as (_, address):
        pass
    channel = open_channel(address)
    with pytest.raises(UnavailableError) as caught:
        await RewardClient(channel).score(request(), timeout_seconds=0.5)
    await channel.close()
    assert failure_of(caught.value).reason is FailureReason.REWARD_UNAVAILABLE


async def test_a_long_strange_completion_passes():
    async with running(config()) as (client, _):
        text = "\u4e2d\U0001f600\u0000\n" * 500_000
        assert (await client.score(request(text, answer=text), timeout_seconds=20)).reward == 1.0


async def test_a_probe_over_the_wire_tells_right_from_wrong():
    settings = config(scorer="numeric", extract=r"<answer>(.*?)</answer>")
    async with running(settings) as (client, _):

        async def score(completion):
            return await client.score(request(completion, trajectory=completion), timeout_seconds=10)

        probe = await probe_scorer(score, answer="4", options=settings.options)
        assert probe.tells_apart
        assert (probe.right.reward, probe.wrong.reward) == (1.0, 0.0)


@pytest.mark.parametrize("error", [OverloadedError("1 of 1"), DeadlineError("late"), UnavailableError("away")])
def test_a_service_that_does_not_answer_is_a_reason_of_its_own(error):
    assert failure_of(error).reason is FailureReason.REWARD_UNAVAILABLE


def test_a_request_that_can_never_work_is_a_reward_error():
    assert failure_of(NotFoundError("no scorer")).reason is FailureReason.REWARD_ERROR
