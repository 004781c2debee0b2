"""A whole rollouter on a real queue, reward service and trainer: tasks become scored groups, whatever dies."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

from services.common.clients.rollouter import RollouterClient
from services.common.errors import InvalidInputError
from services.common.rpc.channel import open_channel
from services.common.rpc.health import wait_healthy
from services.common.types import EndReason, Message, SamplingParams
from services.rollouter.server import serve
from services.trainer.tiny_model import TinyModelShape, build_tiny_model
from tests.integration.rollouter_fleet import Fleet, logprobs_of
from tests.integration.serving import eventually
from tests.redis_server import running_server

SHORT = SamplingParams(max_new_tokens=6)
LONG = SamplingParams(max_new_tokens=200)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    shape = TinyModelShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, max_context_tokens=256)
    build_tiny_model(folder, corpus=["What is 1 + 2?"], seed=0, shape=shape)
    return folder


@pytest.fixture
def fleet(redis_url, model_folder, tmp_path):
    return Fleet(redis_url, model_folder, tmp_path)


@asynccontextmanager
async def services(fleet, *, reward=True):
    """Queue, reward and trainer; yields the trainer."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fleet.queue_service())
        if reward:
            await stack.enter_async_context(fleet.reward_service())
        yield await stack.enter_async_context(fleet.trainer())


async def test_tasks_become_scored_groups_with_the_tokens_that_were_sampled(fleet):
    async with services(fleet) as trainer, fleet.rollouter():
        await trainer.publish(0)
        await trainer.feed(range(3), sampling=SHORT, group_size=4)
        groups = await trainer.take(3)
        await trainer.commit(groups)
        ledger = await trainer.train_ledger()
    assert [len(group.trajectories) for group in groups] == [4, 4, 4]
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        (row,) = trajectory.rows
        assert trajectory.score.reward == len(trajectory.completion)
        assert (trajectory.oldest_version, trajectory.newest_version) == (0, 0)
        assert np.allclose(row.logprobs[row.loss_mask == 1], logprobs_of(trainer.model, row), atol=1e-4)
        assert trajectory.metrics["num_tokens"] == row.loss_mask.sum()
    assert (ledger.lost, ledger.tasks.consumed, ledger.trajectories.put) == (0, 3, 12)


async def test_a_new_version_is_adopted_while_generation_goes_on(fleet):
    async with services(fleet) as trainer, fleet.rollouter(engine={"max_slots": 4}) as address:
        await trainer.publish(0)
        await trainer.feed(range(2), sampling=LONG, group_size=4)
        async with open_channel(address) as channel:
            client = RollouterClient(channel)
            await eventually_busy(client)
            await trainer.publish(1, shift=0.01)
            groups = await trainer.take(2)
            status = await client.get_status()
    assert (status.policy_version, status.policy_digest) == (1, trainer.manifests[1].digest)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert {trajectory.oldest_version for trajectory in trajectories} <= {0, 1}
    mixed = [trajectory for trajectory in trajectories if trajectory.oldest_version < trajectory.newest_version]
    assert mixed, "some trajectory should have gone on through the adoption"
    for trajectory in mixed:
        spans = trajectory.rows[0].version_spans
        assert [span.version for span in spans] == [0, 1]
        assert spans[0].end == spans[1].start
    (adoption,) = fleet.store.adoptions.values()
    assert adoption.version == 1
    assert adoption.pause_seconds < adoption.total_seconds
    assert adoption.received_bytes == trainer.manifests[1].total_bytes


async def eventually_busy(client):
    async with asyncio.timeout(20):
        while (await client.get_status()).busy_slots == 0:
            await asyncio.sleep(0.01)


async def test_the_queue_may_restart_while_members_are_in_flight(fleet):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fleet.reward_service())
        async with fleet.queue_service(), fleet.trainer() as trainer:
            await trainer.publish(0)
            await trainer.feed(range(3), sampling=LONG, group_size=4)
            address = await stack.enter_async_context(fleet.rollouter())
            client = RollouterClient(await stack.enter_async_context(open_channel(address)))
            await eventually_busy(client)
        await asyncio.sleep(0.3)
        epoch = trainer.epoch
        async with fleet.queue_service() as queue_address, fleet.queue_client() as queue:
            await wait_healthy(queue_address, 10)
            trainer.queue, trainer.epoch = queue, epoch
            groups = await trainer.take(3)
            await trainer.commit(groups)
            ledger = await trainer.train_ledger()
    assert [len(group.trajectories) for group in groups] == [4, 4, 4]
    assert ledger.lost == 0


async def test_the_work_of_a_killed_replica_is_done_by_another(fleet):
    async with services(fleet) as trainer:
        await trainer.publish(0)
        await trainer.feed(range(2), sampling=LONG, group_size=4)
        killed = asyncio.ensure_future(serve(fleet.rollouter_config("killed"), handle_signals=False))
        await eventually_leased(trainer)
        killed.cancel()
        with suppress(asyncio.CancelledError):
            await killed
        async with fleet.rollouter("other"):
            groups = await trainer.take(2)
            await trainer.commit(groups)
            ledger = await trainer.train_ledger()
    replicas = {trajectory.replica_id[:5] for group in groups for trajectory in group.trajectories}
    assert "other" in replicas
    assert ledger.trajectories.lapsed > 0
    assert ledger.lost == 0


async def eventually_leased(trainer):
    async with asyncio.timeout(20):
        while (await trainer.train_ledger()).trajectories.in_flight == 0:
            await asyncio.sleep(0.01)


async def test_a_reward_service_that_is_away_makes_failures_and_no_rewards(fleet):
    async with services(fleet, reward=False) as trainer, fleet.rollouter(score_seconds=0.3):
        await trainer.publish(0)
        await trainer.feed(range(1), sampling=SHORT, group_size=2)
        async with asyncio.timeout(20):
            while (await trainer.train_ledger()).tasks.dead_lettered == 0:
                await asyncio.sleep(0.05)
        ledger = await trainer.train_ledger()
    assert ledger.trajectories.failed == {"reward_unavailable": 4}
    assert ledger.trajectories.put == 0
    assert ledger.lost == 0


async def test_a_drain_gives_back_what_does_not_end_and_ends_the_service(fleet):
    config = fleet.rollouter_config(engine={"max_slots": 2})
    config = replace(config, worker=replace(config.worker, drain_seconds=0.0))
    async with services(fleet) as trainer:
        await trainer.publish(0)
        await trainer.feed(range(4), sampling=LONG, group_size=4)
        bound = asyncio.get_running_loop().create_future()
        service = asyncio.ensure_future(serve(config, on_bound=bound.set_result, handle_signals=False))
        async with open_channel(await bound) as channel:
            await eventually_leased(trainer)
            await RollouterClient(channel).drain()
            await asyncio.wait_for(service, 10)
        ledger = await trainer.train_ledger()
    trajectories = ledger.trajectories
    assert trajectories.released["drain"] in {1, 2}
    assert trajectories.issued == trajectories.released["drain"] + trajectories.put
    assert trajectories.in_flight == 0
    assert ledger.lost == 0


async def test_a_rollouter_ends_when_the_run_has_finished(fleet):
    async with services(fleet) as trainer:
        await trainer.publish(0)
        service = asyncio.ensure_future(serve(fleet.rollouter_config(), handle_signals=False))
        await trainer.feed(range(1), sampling=SHORT)
        groups = await trainer.take(1)
        await trainer.commit(groups, final=True)
        await asyncio.wait_for(service, 10)


async def test_a_replica_answers_whoever_asks(fleet):
    async with services(fleet) as trainer, fleet.rollouter("r7") as address, open_channel(address) as channel:
        client = RollouterClient(channel)
        await trainer.publish(0)
        await eventually(lambda: fleet.store.adoptions, seconds=20)
        messages = (Message(role="user", content="What is 1 + 2?"),)
        first = [piece async for piece in client.generate(messages, SHORT, seed=5)]
        again = [piece async for piece in client.generate(messages, SHORT, seed=5)]
        long = (Message(role="user", content="1 + 2? " * 300),)
        with pytest.raises(InvalidInputError, match="leave room"):
            [piece async for piece in client.generate(long, SHORT, seed=5)]
        status = await client.get_status()
    assert [token for piece in first for token in piece.token_ids] == [t for piece in again for t in piece.token_ids]
    assert first[-1].end_reason in {EndReason.STOP, EndReason.LENGTH}
    assert {piece.policy_version for piece in first} == {0}
    assert first[-1].text == again[-1].text
    assert status.replica_id.startswith("r7-")
    assert (status.state, status.policy_version, status.max_slots) == ("serving", 0, 8)


@pytest.fixture
def scripted(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text('seconds_per_token = 0.01\n[[rules]]\nreplies = ["3"]\nnum_tokens = [60, 60]\n')
    return {"kind": "scripted", "script": str(path), "max_slots": 4}


async def test_a_scripted_replica_works_like_any_other(fleet, scripted):
    sampling = SamplingParams(max_new_tokens=80)
    async with services(fleet) as trainer, fleet.rollouter(engine=scripted), fleet.rollouter("r1", engine=scripted):
        await trainer.publish(0)
        await trainer.feed(range(4), sampling=sampling, group_size=4)
        await eventually_leased(trainer)
        await trainer.publish(1, shift=0.01)
        groups = await trainer.take(4, use_version=1)
        await trainer.commit(groups, version=1)
        ledger = await trainer.train_ledger()
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(trajectories) == 16
    assert {trajectory.replica_id[:2] for trajectory in trajectories} == {"r0", "r1"}
    assert any(trajectory.oldest_version < trajectory.newest_version for trajectory in trajectories)
    assert {adoption.digest for adoption in fleet.store.adoptions.values()} == {trainer.manifests[1].digest}
    assert ledger.lost == 0


async def test_what_can_no_longer_be_in_time_is_ended_early_and_done_anew(fleet, scripted):
    sampling = SamplingParams(max_new_tokens=80)
    async with services(fleet) as trainer, fleet.rollouter(engine=scripted):
        await trainer.publish(0)
        await trainer.feed(range(1), sampling=sampling, group_size=2)
        await eventually_leased(trainer)
        await asyncio.sleep(0.1)
        await trainer.publish(1)
        await trainer.publish(2)
        groups = await trainer.take(1, use_version=2)
        ledger = await trainer.train_ledger()
    assert groups[0].oldest_version >= 1
    assert ledger.trajectories.released == {"stale": 2}
    assert ledger.lost == 0
