"""The store against the model, under random stories of puts, losses, crashes and takeovers.

After every step: both tables balance and every column is what the model says; at the end of every story the run is
drained, and every task that was ever fed has ended exactly once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis

from services.common.types import (
    DropReason,
    FailureReason,
    GroupOutcome,
    GroupResult,
    Partition,
    ReleaseReason,
    RunId,
    TaskId,
)
from services.queue.store import QueueStore
from tests.unit.queue.driver import Driver
from tests.unit.queue.model import Model

GROUPS_PER_VERSION = 2
OUTCOMES = {
    "consumed": (GroupOutcome.CONSUMED, None),
    "filtered": (GroupOutcome.FILTERED, None),
    "dropped:stale": (GroupOutcome.DROPPED, DropReason.STALE),
}


def name_of(item):
    return (int(item.key.task_id), item.key.attempt, item.key.member, item.issue)


def results_of(rows):
    return [
        GroupResult(
            task_id=TaskId(f"{sequence:08d}"),
            attempt=attempt,
            outcome=OUTCOMES[column][0],
            drop_reason=OUTCOMES[column][1],
        )
        for sequence, attempt, column in rows
    ]


class QueueStory(RuleBasedStateMachine):
    """One run; the rollouters and the trainer of it are played by the rules."""

    redis_url = ""

    @initialize(max_staleness=st.integers(0, 2), max_member_issues=st.integers(1, 3), least=st.integers(1, 2))
    def begin(self, max_staleness, max_member_issues, least):
        self.loop = asyncio.new_event_loop()
        self.redis = Redis.from_url(self.redis_url)
        self.driver = Driver(QueueStore(self.redis_url), RunId(f"story-{uuid.uuid4().hex[:12]}"))
        self.model = Model(max_staleness=max_staleness, max_member_issues=max_member_issues, min_group_members=least)
        self.do(
            self.driver.begin(
                max_staleness=max_staleness,
                max_member_issues=max_member_issues,
                min_group_members=least,
                groups_per_version=GROUPS_PER_VERSION,
                lease_seconds=3000.0,
            )
        )
        self.next_sequence = 0
        self.base, self.carry = 0, 0
        self.held = []
        self.seen = []
        self.batch = []
        self.saved = (0, [], 0)
        self.trained = set()
        self.feed(4)

    def do(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self):
        if hasattr(self, "loop"):
            try:
                self.drain()
            finally:
                self.do(self.driver.store.close())
                self.do(self.redis.aclose())
                self.loop.close()

    def size(self, sequence):
        return 2 + sequence % 2

    # The trainer.

    @rule(number=st.integers(1, 5))
    def feed(self, number):
        offered = range(self.next_sequence, self.next_sequence + number)
        limit = (self.model.max_staleness + self.driver.version - self.base + 1) * GROUPS_PER_VERSION
        admitted = max(0, min(number, limit - len(self.model.groups) - self.carry))
        for count, sequence in enumerate(offered):
            answer = self.do(self.driver.feed(sequence, group_size=self.size(sequence)))
            assert answer.num_accepted == (1 if count < admitted else 0)
            assert answer.remaining_capacity == max(0, admitted - count - 1) or count < admitted
        for sequence in list(offered)[:admitted]:
            self.model.feed(sequence, self.size(sequence))
        self.next_sequence += admitted

    @rule(back=st.integers(1, 6))
    def feed_again(self, back):
        for sequence in range(max(0, self.next_sequence - back), self.next_sequence):
            assert self.do(self.driver.feed(sequence, group_size=self.size(sequence))).num_accepted == 1

    @rule()
    def register(self):
        if self.driver.version - self.base < 3:
            self.do(self.driver.register(self.driver.version + 1))

    @rule(num_groups=st.integers(1, 3), lost_answer=st.booleans())
    def lease_batch(self, num_groups, lost_answer):
        request_id = uuid.uuid4().hex
        self.model.retire_stale(self.driver.version)
        ready = self.model.ready()
        expected = ready[:num_groups] if len(ready) >= num_groups else []
        batch = self.do(self.driver.batch(num_groups, request_id=request_id))
        if lost_answer and expected:
            batch = self.do(self.driver.batch(num_groups, request_id=request_id))
        assert [group.sequence for group in batch.groups] == expected
        assert batch.commit_number == self.model.commit_number
        for group in batch.groups:
            self.check_group(group)
            self.model.groups[group.sequence].state = "leased"
            self.batch.append(group)

    def check_group(self, group):
        known = self.model.groups[group.sequence]
        assert group.attempt == known.attempt
        expected = [
            f"{group.sequence}/{group.attempt}/{index}/{member.issue}/{member.version}".encode()
            for index, member in enumerate(known.members)
            if member.state == "done"
        ]
        assert list(group.payloads) == expected
        oldest = min(int(payload.rsplit(b"/", 1)[1]) for payload in group.payloads)
        assert group.oldest_version == oldest
        assert self.driver.version - oldest <= self.model.max_staleness

    @rule(column=st.sampled_from(["consumed", "consumed", "filtered", "dropped:stale"]), arrives=st.booleans())
    def checkpoint(self, column, arrives):
        """Save a checkpoint and commit it; the commit may not arrive before the trainer dies."""
        if not self.batch:
            self.lease_batch(1, lost_answer=False)
        rows = [(group.sequence, group.attempt, column) for group in self.batch]
        self.saved = (self.model.commit_number + 1, rows, self.driver.version)
        for sequence, _, ended in rows:
            assert ended != "consumed" or sequence not in self.trained, "trained twice"
            if ended == "consumed":
                self.trained.add(sequence)
        self.batch = []
        if arrives:
            self.commit_saved()
        else:
            self.take_over()

    def commit_saved(self):
        number, rows, version = self.saved
        if number == self.model.commit_number + 1:
            consumed = sum(column == "consumed" for _, _, column in rows)
            base = max(self.base, version)
            self.carry = max(0, self.carry + consumed - (base - self.base) * GROUPS_PER_VERSION)
            self.base = base
        self.model.commit(number, rows)
        answer = self.driver.store.batches.commit(
            self.driver.run_id,
            results_of(rows),
            epoch=self.driver.epoch,
            partition=Partition.TRAIN,
            commit_number=number,
            policy_version=version,
        )
        assert self.do(answer) == self.model.commit_number

    @precondition(lambda self: self.saved[0] > 0)
    @rule()
    def repeat_commit(self):
        self.commit_saved()

    @rule()
    def take_over(self):
        """Lose what is not in the checkpoint; the new trainer repeats its commit, then releases the rest."""
        self.batch = []
        self.do(self.driver.create(owner=uuid.uuid4().hex))
        if self.saved[0] > 0:
            self.commit_saved()
        released = self.do(self.driver.release_batch())
        assert released == sum(group.state == "leased" for group in self.model.groups.values())
        self.model.release_batch()
        self.do(self.driver.register(self.driver.version + 1, branch=True))
        self.base, self.carry = self.driver.version, 0

    # The rollouters.

    @rule(number=st.integers(1, 6), behind=st.integers(0, 2))
    def lease(self, number, behind):
        version = max(0, self.driver.version - behind)
        items = self.do(self.driver.lease(number, version=version))
        order = [(int(item.key.task_id), item.key.member) for item in items]
        assert order == sorted(order)
        for item in items:
            assert item.min_version <= version
            self.model.lease(name_of(item))
            self.held.append((item, version))
            self.seen.append((item, version))
        if len(items) < number and behind == 0:
            waiting = [m for g in self.model.groups.values() if g.state == "open" for m in g.members]
            assert not any(member.state == "pending" for member in waiting)

    @rule(number=st.integers(2, 12), behind=st.integers(0, 1))
    def work(self, number, behind):
        """Lease, and put all that is held."""
        self.lease(number, behind)
        for item, version in self.held:
            self.put_one(item, version)
        self.held = []

    def pick(self, data, pool):
        return pool[data.draw(st.integers(0, len(pool) - 1))]

    def put_one(self, item, version):
        expected = self.model.put(name_of(item), version)
        payload = "/".join(str(part) for part in (*name_of(item), version)).encode()
        assert self.do(self.driver.put(item, version=version, payload=payload)) == [expected]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def put(self, data):
        item, version = self.pick(data, self.held)
        self.held.remove((item, version))
        self.put_one(item, version)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def put_late_or_again(self, data):
        self.put_one(*self.pick(data, self.seen))

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), reason=st.sampled_from([FailureReason.ENGINE_ERROR, FailureReason.REWARD_TIMEOUT]))
    def fail(self, data, reason):
        item, _ = self.pick(data, self.seen)
        expected = self.model.fail(name_of(item), reason.value)
        assert self.do(self.driver.fail(item, reason=reason)) == [expected]

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), reason=st.sampled_from(list(ReleaseReason)))
    def release(self, data, reason):
        item, _ = self.pick(data, self.seen)
        self.model.release(name_of(item), reason.value)
        self.do(self.driver.release(item, reason=reason))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def extend(self, data):
        item, _ = self.pick(data, self.seen)
        lost = self.do(self.driver.extend(item)) != ()
        assert lost == self.model.extend(name_of(item))

    def expire(self, items):
        """Let the deadlines pass without waiting for them."""
        key = f"hr:{{{self.driver.run_id}}}:train:leases"
        names = {item.lease_id.removeprefix("train/"): 1 for item in items}
        if names:
            self.do(self.redis.zadd(key, names, xx=True))
        self.do(self.driver.store.runs.sweep(self.driver.run_id))
        for item in items:
            self.model.lapse(name_of(item))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def lapse(self, data):
        self.expire([self.pick(data, self.seen)[0]])

    @rule()
    def kill_holder(self):
        """All that is held lapses; nobody answers for it."""
        self.expire([item for item, _ in self.held])
        self.held = []

    # What must hold.

    @invariant()
    def ledger_is_what_the_model_says(self):
        if not hasattr(self, "model"):
            return
        ledger = self.do(self.driver.ledger())
        tasks, trajectories = ledger.tasks, ledger.trajectories
        model = self.model
        assert (tasks.fed, tasks.refilled, tasks.open) == (
            model.tasks["fed"],
            model.tasks["refilled"],
            len(model.groups),
        )
        assert tasks.consumed == model.tasks["consumed"]
        assert tasks.filtered == model.tasks["filtered"]
        assert tasks.dead_lettered == model.tasks["dead_lettered"]
        assert tasks.dropped == by_reason(model.tasks, "dropped:")
        ends = Counter(model.issues.values())
        assert trajectories.issued == len(model.issues)
        assert (trajectories.in_flight, trajectories.lapsed) == (ends["live"], ends["lapsed"])
        assert (trajectories.put, trajectories.duplicate) == (ends["put"], ends["duplicate"])
        assert trajectories.failed == by_reason(ends, "failed:")
        assert trajectories.released == by_reason(ends, "released:")
        assert ledger.trained_twice == 0
        assert ledger.commits == model.commit_number

    def is_kept(self, key):
        return self.do(self.redis.ttl(key)) == -1 and any(kind in key for kind in (b":payload:", b":group:", b":task:"))

    def drain(self):
        """A healthy fleet finishes whatever the story left behind."""
        self.take_over()
        for _ in range(60):
            if not self.model.groups:
                break
            self.kill_holder()
            self.expire([item for item, _ in self.seen if self.model.issues[name_of(item)] == "live"])
            self.work(100, 0)
            self.lease_batch(1, lost_answer=False)
            self.checkpoint("consumed", arrives=True)
        self.ledger_is_what_the_model_says()
        assert not self.model.groups
        assert set(self.model.ended) == set(range(self.next_sequence))
        # Bodies that were offered and not admitted go away by themselves; nothing else may stay.
        kept = [key for key in self.do(self.redis.keys(f"hr:{{{self.driver.run_id}}}:train:*:*")) if self.is_kept(key)]
        assert kept == []
        ended = f"hr:{{{self.driver.run_id}}}:train:ended"
        assert self.do(self.redis.scard(ended)) == 0


def by_reason(counts, prefix):
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix) and count}


@pytest.mark.timeout(180)
def test_the_store_follows_the_rules_in_random_stories(redis_url):
    QueueStory.redis_url = redis_url
    run_state_machine_as_test(
        QueueStory,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            # A failing story is printed as it is; making it shorter takes minutes.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
