"""Client and server of the queue over gRPC, on a real Redis or Valkey."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from services.common.clients.queue import QueueClient
from services.common.clients.runs import RunsClient
from services.common.errors import (
    ConfigError,
    ConflictError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    QuotaError,
    ReconcileRequiredError,
    RunNotFinishedError,
    StateFormatError,
    UnavailableError,
)
from services.common.rpc.channel import open_channel
from services.common.rpc.health import check_health, wait_healthy
from services.common.types import (
    FailedMember,
    Failure,
    FailureReason,
    GroupOutcome,
    GroupResult,
    OnStale,
    Partition,
    PutOutcome,
    ReleaseReason,
    ReplicaId,
    ReplicaStatus,
    RunId,
    RunSettings,
    WhenFull,
)
from services.queue.config import ServiceConfig
from services.queue.quotas import Quotas
from services.queue.server import serve
from services.queue.store import QueueStore
from tests.factories import make_task, make_trajectory
from tests.redis_server import free_port, running_server

SETTINGS = RunSettings(
    max_staleness=1,
    groups_per_version=4,
    on_stale=OnStale.REFILL,
    max_member_issues=2,
    lease_seconds=30.0,
    max_queue_size=16,
    max_queue_bytes=10**9,
    when_full=WhenFull.BLOCK,
    min_group_members=1,
)
REPLICA = ReplicaId("replica-a")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@asynccontextmanager
async def serving(redis_url, **quotas):
    """Run the service inside the block; yields its address."""
    bound = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    config = ServiceConfig(redis_url=redis_url, quotas=Quotas(**quotas))
    service = asyncio.ensure_future(serve(config, on_bound=bound.set_result, stop=stop, handle_signals=False))
    try:
        yield await bound
    finally:
        stop.set()
        await service


@pytest.fixture
async def queue(redis_url):
    async with serving(redis_url) as address, open_channel(address) as channel:
        yield QueueClient(channel, RunId(f"run-{uuid.uuid4().hex[:12]}"))


def answer(assignment, **changes):
    """The trajectory that an assignment asks for."""
    trajectory = make_trajectory(assignment.task.sequence, assignment.key.member, **changes)
    return replace(trajectory, key=assignment.key, lease_id=assignment.lease_id, traceparent=assignment.traceparent)


async def begin(queue):
    state = await queue.create_run(SETTINGS, owner_id="trainer-1")
    await queue.register_version(0, epoch=state.epoch, digest="d0")
    return state.epoch


async def lease_batch(queue, epoch, num_groups=1, **options):
    options = {"partition": Partition.TRAIN, "use_version": 0, "wait_seconds": 0.0, **options}
    request_id = options.pop("request_id", uuid.uuid4().hex)
    return await queue.lease_batch(epoch=epoch, num_groups=num_groups, request_id=request_id, **options)


async def test_a_trajectory_travels_from_task_to_commit_unchanged(queue):
    epoch = await begin(queue)
    tasks = [make_task(0), make_task(1)]
    enqueued = await queue.enqueue_tasks(tasks, epoch=epoch, partition=Partition.TRAIN, end_of_data=True)
    assert (enqueued.num_accepted, enqueued.remaining_capacity) == (2, 6)

    leased = await queue.lease_tasks(REPLICA, max_members=10, policy_version=0, wait_seconds=1.0)
    assert [item.task for item in leased.assignments] == [tasks[0], tasks[0], tasks[1], tasks[1]]
    assert {item.lease_seconds for item in leased.assignments} == {30.0}
    assert len({item.traceparent for item in leased.assignments}) == 4
    assert await queue.extend_lease(REPLICA, [item.lease_id for item in leased.assignments]) == ()

    trajectories = [answer(item) for item in leased.assignments]
    assert await queue.put_trajectories(trajectories) == (PutOutcome.ACCEPTED,) * 4
    assert await queue.put_trajectories(trajectories) == (PutOutcome.ACCEPTED,) * 4

    batch = await lease_batch(queue, epoch, 2)
    assert [group.sequence for group in batch.groups] == [0, 1]
    assert batch.end_of_data
    got = [trajectory for group in batch.groups for trajectory in group.trajectories]
    for sent, received in zip(trajectories, got, strict=True):
        assert received.key == sent.key
        assert received.score == sent.score
        assert np.array_equal(received.rows[0].token_ids, sent.rows[0].token_ids)
        assert np.array_equal(received.rows[0].logprobs, sent.rows[0].logprobs)
        assert received.rows[0].version_spans == sent.rows[0].version_spans

    results = [
        GroupResult(task_id=group.task_id, attempt=group.attempt, outcome=GroupOutcome.CONSUMED)
        for group in batch.groups
    ]
    commit = {"epoch": epoch, "partition": Partition.TRAIN, "policy_version": 0, "final": True}
    assert await queue.commit_batch(results, commit_number=1, **commit) == 1
    assert await queue.commit_batch(results, commit_number=1, **commit) == 1
    train, validation = await queue.get_ledger()
    assert (train.tasks.fed, train.tasks.consumed, train.tasks.open, train.lost) == (2, 2, 0, 0)
    assert (train.trajectories.issued, train.trajectories.put, train.commits, train.trained_twice) == (4, 4, 1, 0)
    assert (validation.tasks.fed, validation.lost) == (0, 0)
    assert (await queue.lease_tasks(REPLICA, max_members=1, policy_version=0, wait_seconds=5.0)).run_finished


async def test_a_lost_batch_answer_is_asked_for_again(queue):
    epoch = await begin(queue)
    await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
    leased = await queue.lease_tasks(REPLICA, max_members=2, policy_version=0, wait_seconds=0.0)
    await queue.put_trajectories([answer(item) for item in leased.assignments])
    first = await lease_batch(queue, epoch, request_id="lost")
    again = await lease_batch(queue, epoch, request_id="lost")
    assert [group.sequence for group in again.groups] == [group.sequence for group in first.groups] == [0]
    assert (await lease_batch(queue, epoch)).groups == ()
    assert await queue.release_batch(epoch=epoch, partition=Partition.TRAIN) == 1
    assert len((await lease_batch(queue, epoch)).groups) == 1


async def test_failures_and_releases_arrive_with_their_reasons(queue):
    epoch = await begin(queue)
    await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
    first, second = (await queue.lease_tasks(REPLICA, max_members=2, policy_version=0, wait_seconds=0.0)).assignments
    failure = Failure(reason=FailureReason.REWARD_TIMEOUT, message="no answer in 10 s")
    failed = FailedMember(key=first.key, lease_id=first.lease_id, failure=failure)
    assert await queue.put_trajectories([failed]) == (PutOutcome.REISSUED,)
    await queue.release_tasks([second.lease_id], reason=ReleaseReason.DRAIN)
    ledger = (await queue.get_ledger())[0].trajectories
    assert (ledger.failed, ledger.released) == ({"reward_timeout": 1}, {"drain": 1})


async def test_heartbeats_and_depths_are_seen_by_others(queue):
    epoch = await begin(queue)
    await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
    status = ReplicaStatus(
        replica_id=REPLICA,
        service="rollouter",
        policy_version=7,
        policy_digest="abc",
        busy_slots=1,
        max_slots=8,
        address="127.0.0.1:1",
        state="serving",
        metrics={"tokens_per_second": 12.5},
    )
    assert await queue.heartbeat(status) is False
    stats = await queue.get_stats()
    assert stats.replicas[0].status == status
    assert 0 <= stats.replicas[0].age_seconds < 5
    train = stats.partitions[0]
    assert (train.partition, train.open_groups, train.pending_members) == (Partition.TRAIN, 1, 2)
    assert (await queue.create_run(SETTINGS, owner_id="trainer-2")).replica_version == 7


async def test_errors_arrive_as_the_class_that_was_raised(queue):
    with pytest.raises(NotFoundError):
        await queue.get_stats()
    epoch = await begin(queue)
    with pytest.raises(ConflictError, match="max_staleness 1 != 2"):
        await queue.create_run(replace(SETTINGS, max_staleness=2), owner_id="trainer-1")
    await queue.register_version(1, epoch=epoch, digest="d1")
    with pytest.raises(InvalidInputError, match="versions only grow"):
        await queue.register_version(0, epoch=epoch, digest="d0")
    with pytest.raises(ReconcileRequiredError) as caught:
        await queue.commit_batch([], epoch=epoch, partition=Partition.TRAIN, commit_number=5, policy_version=0)
    assert caught.value.metadata["commit_number"] == "0"
    await queue.create_run(SETTINGS, owner_id="trainer-2")
    with pytest.raises(FencedError):
        await queue.release_batch(epoch=epoch, partition=Partition.TRAIN)


async def test_a_checkpoint_rebuilds_a_run_that_redis_lost(queue):
    epoch = await begin(queue)
    removed = await queue.reconcile(
        epoch=epoch,
        commit_number=4,
        first_open_sequence=10,
        ended_sequences=[12],
        policy_version=3,
        num_consumed=9,
        num_filtered=1,
        num_dropped=1,
    )
    assert removed == 0
    ledger = (await queue.get_ledger())[0]
    assert (ledger.tasks.fed, ledger.tasks.consumed, ledger.lost, ledger.commits) == (11, 9, 0, 4)
    tasks = [make_task(sequence) for sequence in (9, 10, 12)]
    assert (await queue.enqueue_tasks(tasks, epoch=epoch, partition=Partition.TRAIN)).num_accepted == 3
    assert (await queue.get_ledger())[0].tasks.open == 1


async def test_two_services_on_one_redis_are_one_queue(redis_url, queue):
    epoch = await begin(queue)
    async with serving(redis_url) as address, open_channel(address) as channel:
        other = QueueClient(channel, queue._run_id)
        waiting = asyncio.ensure_future(other.lease_tasks(REPLICA, max_members=2, policy_version=0, wait_seconds=5.0))
        await asyncio.sleep(0.1)
        await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
        assert len((await waiting).assignments) == 2


async def test_a_stopping_service_ends_long_polls_at_once(redis_url):
    clock = asyncio.get_running_loop().time
    async with serving(redis_url) as address, open_channel(address) as channel:
        queue = QueueClient(channel, RunId(f"run-{uuid.uuid4().hex[:12]}"))
        await begin(queue)
        waiting = asyncio.ensure_future(queue.lease_tasks(REPLICA, max_members=2, policy_version=0, wait_seconds=20.0))
        await asyncio.sleep(0.1)
        before = clock()
    assert clock() - before < 3.0
    assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None


async def test_a_redis_that_may_evict_is_refused(tmp_path):
    refused = pytest.raises(ConfigError, match="maxmemory-policy 'allkeys-lru'")
    with running_server(tmp_path, "--maxmemory-policy", "allkeys-lru") as url, refused:
        await serve(ServiceConfig(redis_url=url), handle_signals=False)


async def test_an_unreachable_redis_is_named_without_its_password():
    port = free_port()
    config = ServiceConfig(redis_url=f"redis://:secret@127.0.0.1:{port}/0", patience_seconds=0.2)
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}") as caught:
        await serve(config, handle_signals=False)
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_refused_at_once(tmp_path):
    refused = pytest.raises(ConfigError, match="refused the user or password")
    with running_server(tmp_path, "--requirepass", "right") as url, refused:
        await serve(ServiceConfig(redis_url=url), handle_signals=False)


async def test_the_service_waits_for_a_redis_that_comes_later_and_says_that_it_does_not_serve(tmp_path):
    redis_port, port = free_port(), free_port()
    config = ServiceConfig(redis_url=f"redis://127.0.0.1:{redis_port}/0", address=f"127.0.0.1:{port}")
    bound = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    service = asyncio.ensure_future(serve(config, on_bound=bound.set_result, stop=stop, handle_signals=False))
    async with open_channel(config.address) as channel:
        queue = QueueClient(channel, RunId("late"))
        await channel.channel_ready()
        assert await check_health(config.address) == "NOT_SERVING"
        with pytest.raises(UnavailableError):
            await begin(queue)
        with running_server(tmp_path, port=redis_port):
            assert await asyncio.wait_for(bound, 10.0) == config.address
            await wait_healthy(config.address, 5.0)
            await begin(queue)
            stop.set()
            await asyncio.wait_for(service, 5.0)


async def test_a_service_that_waits_for_redis_stops_at_once():
    stop = asyncio.Event()
    # Accepts connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ServiceConfig(redis_url=f"redis://127.0.0.1:{free_port()}/0")
        store = QueueStore(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        service = asyncio.ensure_future(serve(config, stop=stop, handle_signals=False))
        waiting = asyncio.ensure_future(store.wait_for_server(patience_seconds=60.0, stop=stop))
        await asyncio.sleep(0.3)
        assert not service.done()
        assert not waiting.done()
        stop.set()
        await asyncio.wait_for(asyncio.gather(service, waiting), 2.0)
        await store.close()


async def test_the_service_outlives_a_restart_of_redis(tmp_path):
    port = free_port()
    persistent = ("--appendonly", "yes", "--appendfsync", "always")
    with running_server(tmp_path, *persistent, port=port) as url:
        service = serving(url)
        address = await service.__aenter__()
        channel = open_channel(address)
        queue = QueueClient(channel, RunId("demo"))
        epoch = await begin(queue)
        await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
        leased = await queue.lease_tasks(REPLICA, max_members=2, policy_version=0, wait_seconds=0.0)
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} cannot be reached"):
        await queue.get_stats()
    with running_server(tmp_path, *persistent, port=port):
        outcomes = await queue.put_trajectories([answer(item) for item in leased.assignments])
        assert outcomes == (PutOutcome.ACCEPTED,) * 2
        assert (await queue.get_ledger())[0].lost == 0
        await channel.close()
        await service.__aexit__(None, None, None)


def test_the_service_loads_no_torch_and_stays_small(redis_url):
    code = (
        "import re, sys, pathlib, services.queue.__main__, services.queue.server\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'heavy import'\n"
        # Not `ru_maxrss`, which a child inherits from the process that started it.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert int(done.stdout) < 150


async def test_runs_are_listed_and_deleted_over_the_wire(redis_url):
    async with serving(redis_url) as address, open_channel(address) as channel:
        run_id = RunId(f"run-{uuid.uuid4().hex[:12]}")
        queue, runs = QueueClient(channel, run_id), RunsClient(channel)
        epoch = await begin(queue)
        await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
        found = {run.run_id: run for run in await runs.list_runs()}
        assert (found[run_id].open_tasks, found[run_id].epoch, found[run_id].finished) == (1, epoch, False)
        with pytest.raises(RunNotFinishedError, match="with force"):
            await runs.delete_run(run_id)
        deletion = await runs.delete_run(run_id, force=True)
        assert deletion.complete
        assert deletion.num_keys > 1
        assert (await runs.delete_run(run_id)).num_keys == 0
        assert run_id not in {run.run_id for run in await runs.list_runs()}
        with pytest.raises(NotFoundError):
            await queue.get_stats()


async def test_dead_letters_are_told_with_their_reasons(queue):
    epoch = await begin(queue)
    await queue.enqueue_tasks([make_task(0)], epoch=epoch, partition=Partition.TRAIN)
    for _ in range(SETTINGS.max_member_issues):
        leased = await queue.lease_tasks(REPLICA, max_members=10, policy_version=0, wait_seconds=1.0)
        failure = Failure(reason=FailureReason.PROMPT_TOO_LONG, message="no room")
        await queue.put_trajectories(
            [FailedMember(key=item.key, lease_id=item.lease_id, failure=failure) for item in leased.assignments]
        )
    (letter,) = await queue.get_dead_letters(max_letters=10)
    assert (letter.partition, letter.sequence, letter.attempt) == (Partition.TRAIN, 0, 0)
    assert letter.reasons == ("prompt_too_long", "prompt_too_long")
    with pytest.raises(InvalidInputError, match="max_letters is 0; use 1 to 1000"):
        await queue.get_dead_letters(max_letters=0)


async def test_a_run_beyond_the_quota_is_refused_over_the_wire(redis_url):
    async with serving(redis_url, bytes_per_run=1000) as address, open_channel(address) as channel:
        queue = QueueClient(channel, RunId(f"run-{uuid.uuid4().hex[:12]}"))
        with pytest.raises(QuotaError, match=r"raise queue\.quota_bytes"):
            await queue.create_run(SETTINGS, owner_id="trainer-1")


async def test_a_run_of_another_format_is_refused_over_the_wire(redis_url, queue):
    await begin(queue)
    store = QueueStore(redis_url)
    await store._redis._redis.hset(f"hr:{{{queue._run_id}}}:run", "format", "2")
    await store.close()
    with pytest.raises(StateFormatError, match="format 2"):
        await queue.get_stats()
