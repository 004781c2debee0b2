"""Runs side by side on one queue: whatever is interleaved, each lives as if it were alone."""

from __future__ import annotations

import random

import pytest

from services.common.errors import InvalidInputError
from services.common.types import FailureReason, Partition, RunId
from services.queue.store import QueueStore
from tests.redis_server import running_server
from tests.unit.queue.driver import SETTINGS, Driver, stored_task

NAMES = ("a", "ab", "a.b")
STEPS = 60


@pytest.fixture(scope="module")
def own_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def store(own_url):
    store = QueueStore(own_url)
    await store._redis._redis.flushall()
    yield store
    await store.close()


class Story:
    """The life of one run, step by step; chance depends on the name and seed alone. `log` is all that it ever got."""

    def __init__(self, store, name, seed) -> None:
        self.driver = Driver(store, RunId(name))
        self.name = name
        self.chance = random.Random(f"{name} {seed}")
        self.next_sequence = dict.fromkeys(Partition, 0)
        self.held = []
        self.leased = dict.fromkeys(Partition, ())
        self.commit_number = 0
        self.log = []

    async def begin(self):
        await self.driver.begin(groups_per_version=8, max_staleness=1, max_member_issues=2)

    async def step(self):
        partition = self.chance.choice((Partition.TRAIN, Partition.TRAIN, Partition.VALIDATION))
        steps = (
            self.feed,
            self.lease,
            self.lease,
            self.put,
            self.put,
            self.fail,
            self.release,
            self.batch,
            self.commit,
        )
        await self.chance.choice(steps)(partition)

    async def feed(self, partition):
        first = self.next_sequence[partition]
        tasks = [
            stored_task(at, group_size=1 + at % 3, partition=partition, body=f"{self.name} {partition} {at}".encode())
            for at in range(first, first + self.chance.randint(1, 4))
        ]
        answer = await self.driver.feed(partition=partition, tasks=tasks)
        self.next_sequence[partition] += answer.num_accepted
        self.log.append(("fed", answer.num_accepted, answer.remaining_capacity))

    async def lease(self, partition):
        members = await self.driver.lease(self.chance.randint(1, 6))
        self.held += members
        self.log += [("leased", str(member.key), member.issue, member.body) for member in members]

    def _some(self):
        self.chance.shuffle(self.held)
        cut = self.chance.randint(0, len(self.held))
        some, self.held = self.held[:cut], self.held[cut:]
        return some

    async def put(self, partition):
        for member in self._some():
            (outcome,) = await self.driver.put(member, payload=f"{self.name}: {member.key}".encode())
            self.log.append(("put", str(member.key), outcome))

    async def fail(self, partition):
        for member in self._some()[:2]:
            (outcome,) = await self.driver.fail(member, reason=FailureReason.ENGINE_ERROR)
            self.log.append(("failed", str(member.key), outcome))

    async def release(self, partition):
        self.log.append(("released", await self.driver.release(*self._some())))

    async def batch(self, partition):
        if not self.leased[partition]:
            self.leased[partition] = (await self.driver.batch(2, partition=partition)).groups
            self.log += [("group", group.task_id, group.payloads) for group in self.leased[partition]]

    async def commit(self, partition):
        if partition is Partition.TRAIN:
            self.commit_number += 1
        number = await self.driver.commit(self.commit_number, self.leased[partition], partition=partition)
        self.leased[partition] = ()
        self.log.append(("committed", number))

    async def end(self):
        """Return everything that the run ever saw, and its account."""
        account = await self.driver.account()
        depths = [(part.partition, part.open_groups, part.payload_bytes) for part in account.stats.partitions]
        letters = await self.driver.store.accounts.dead_letters(self.driver.run_id, max_letters=1000)
        return self.log, account.ledgers, depths, sorted((letter.task_id, letter.reasons) for letter in letters)


@pytest.mark.parametrize("seed", range(8))
async def test_interleaved_runs_see_what_each_would_see_alone(store, seed):
    order = random.Random(seed)
    stories = [Story(store, name, seed) for name in NAMES]
    for story in stories:
        await story.begin()
    turns = [story for story in stories for _ in range(STEPS)]
    order.shuffle(turns)
    for story in turns:
        await story.step()
    together = [await story.end() for story in stories]

    redis = store._redis._redis
    for index, story in enumerate(stories):
        others = [await other.driver.snapshot() for other in stories[index + 1 :]]
        await store.retirement.delete(story.driver.run_id, force=True)
        assert others == [await other.driver.snapshot() for other in stories[index + 1 :]]
    assert await redis.dbsize() == 0

    for name, seen in zip(NAMES, together, strict=True):
        alone = Story(store, name, seed)
        await alone.begin()
        for _ in range(STEPS):
            await alone.step()
        assert await alone.end() == seen
        await redis.flushall()
    assert any(log for log, *_ in together)


async def test_a_lease_of_one_run_means_nothing_to_another(store):
    one, other = (Driver(store, RunId(name)) for name in ("a", "ab"))
    for driver in (one, other):
        await driver.begin()
        await driver.feed(0, group_size=1)
    (member,) = await one.lease()
    assert await other.extend(member) == (member.lease_id,)
    assert await other.release(member) == 0
    assert await other.put(member) == ["duplicate"]
    assert (await other.stats()).ready_groups == 0
    assert await one.put(member) == ["accepted"]
    assert (await other.ledger()).trajectories.issued == 0


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "{a}", "a}:{b", "a*", "a?", "[a]", "a\\", "a\x00", "a\n", "\u00e4", "a" * 129]
)
async def test_a_name_with_other_characters_is_refused_by_every_call_and_leaves_no_key(store, name):
    driver = Driver(store, RunId(name))
    for call in (
        lambda: store.runs.create(RunId(name), SETTINGS, owner_id="a"),
        lambda: driver.feed(0),
        driver.lease,
        driver.batch,
        lambda: store.retirement.delete(RunId(name), force=True),
        lambda: store.accounts.dead_letters(RunId(name), max_letters=1),
    ):
        with pytest.raises(InvalidInputError, match="run_id"):
            await call()
    assert await store._redis._redis.dbsize() == 0
