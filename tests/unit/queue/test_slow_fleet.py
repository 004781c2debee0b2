"""A made-up fleet with slow tasks: with `on_stale = wait` none is thrown away, with `refill` they are."""

from __future__ import annotations

import heapq
import random

import pytest

from services.common.types import OnStale, ReleaseReason


class Fleet:
    """Replicas and a trainer in a made-up time of ticks on a real store; one task in ten is ten times longer."""

    SLOTS = 6
    LAGS = (0, 1, 4)
    """Ticks until each replica has adopted a new version."""

    def __init__(self, driver, *, updates_per_version, max_staleness, deadly):
        self.driver = driver
        self.random = random.Random(1)
        self.updates_per_version = updates_per_version
        self.max_staleness = max_staleness
        self.deadly = deadly
        self.tick = 0
        self.running = [[] for _ in self.LAGS]
        """(tick of the end, unique, lease, version) of each replica."""
        self.adopted = [0] * len(self.LAGS)
        self.adoptions = []
        """(tick, replica, version) to come."""
        self.next_sequence = 0
        self.num_commits = 0
        self.uncommitted = []
        self.used = []
        """Groups with the version at which they were used."""
        self.lapsed = set()
        """Tasks of which a lease lapsed."""

    async def work(self, replica):
        """Put what is done, end what is too old, lease what fits."""
        running = self.running[replica]
        while running and running[0][0] <= self.tick:
            _, _, item, version = heapq.heappop(running)
            await self.driver.put(item, version=version)
        late = [entry for entry in running if entry[3] < self.driver.version - self.max_staleness]
        await self.driver.release(*(entry[2] for entry in late), reason=ReleaseReason.STALE)
        self.running[replica] = running = sorted(entry for entry in running if entry not in late)
        if len(running) == self.SLOTS:
            return
        version = self.adopted[replica]
        for number, item in enumerate(await self.driver.lease(self.SLOTS - len(running), version=version)):
            is_slow = int(item.key.task_id) % 10 == 3
            ticks = self.random.randint(2, 6) * (10 if is_slow else 1)
            heapq.heappush(running, (self.tick + ticks, (self.tick, number), item, version))

    async def die(self, replica):
        """All that the replica holds lapses; the next one has the newest version."""
        items = [entry[2] for entry in self.running[replica]]
        self.lapsed |= {item.key.task_id for item in items}
        self.running[replica] = []
        await self.driver.expire(*items)
        self.adopted[replica] = self.driver.version

    async def train(self):
        """Use a batch when there is one."""
        version = self.driver.version
        batch = await self.driver.batch(3)
        if not batch.groups:
            return
        self.used += [(group, version) for group in batch.groups]
        self.uncommitted += batch.groups
        if len(self.used) % (3 * self.updates_per_version) == 0:
            await self.driver.register(version + 1)
            self.adoptions += [(self.tick + lag, replica, version + 1) for replica, lag in enumerate(self.LAGS)]
            if self.random.random() < 0.5:
                self.num_commits += 1
                await self.driver.commit(self.num_commits, self.uncommitted)
                self.uncommitted = []

    async def run(self, steps):
        while len(self.used) < 3 * steps:
            events = [entry[0] for running in self.running for entry in running[:1]] + [at for at, *_ in self.adoptions]
            self.tick = max(self.tick + 1, min(events, default=0))
            assert self.tick < 60 * steps, "nothing goes on any more"
            for at, replica, version in list(self.adoptions):
                if at <= self.tick:
                    self.adopted[replica] = max(version, self.adopted[replica])
                    self.adoptions.remove((at, replica, version))
            wanted = range(self.next_sequence, self.next_sequence + 4)
            self.next_sequence += (await self.driver.feed(*wanted)).num_accepted
            for replica in range(len(self.LAGS)):
                if self.deadly and self.random.random() < 0.03:
                    await self.die(replica)
                await self.work(replica)
            await self.train()


async def simulate(driver, *, on_stale, max_staleness, updates_per_version=1, deadly=False):
    await driver.begin(
        on_stale=on_stale,
        max_staleness=max_staleness,
        groups_per_version=3 * updates_per_version,
        max_member_issues=99,
        lease_seconds=3000.0,
    )
    fleet = Fleet(driver, updates_per_version=updates_per_version, max_staleness=max_staleness, deadly=deadly)
    await fleet.run(24)
    assert max(version - group.oldest_version for group, version in fleet.used) <= max_staleness
    assert len({group.sequence for group, _ in fleet.used}) == len(fleet.used)
    return fleet


@pytest.mark.parametrize("updates_per_version", [1, 2])
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 3])
async def test_slow_tasks_are_used_in_their_first_attempt(driver, max_staleness, updates_per_version):
    fleet = await simulate(
        driver, on_stale=OnStale.WAIT, max_staleness=max_staleness, updates_per_version=updates_per_version
    )
    assert {group.attempt for group, _ in fleet.used} == {0}
    assert any(group.sequence % 10 == 3 for group, _ in fleet.used)
    assert await driver.nothing_was_stale()


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
async def test_the_same_fleet_starves_slow_tasks_when_they_are_refilled(driver, max_staleness):
    await simulate(driver, on_stale=OnStale.REFILL, max_staleness=max_staleness)
    assert not await driver.nothing_was_stale()


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
async def test_only_groups_whose_lease_lapsed_are_ever_refilled(driver, max_staleness):
    fleet = await simulate(driver, on_stale=OnStale.WAIT, max_staleness=max_staleness, deadly=True)
    assert {group.task_id for group, _ in fleet.used if group.attempt} <= fleet.lapsed
    assert fleet.lapsed
    assert (await driver.ledger()).tasks.refilled <= len(fleet.lapsed)
