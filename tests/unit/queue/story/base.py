"""One story: its actors' memory, its call to the queue and to the model, and how it begins."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from services.common.errors import HeadraceError
from services.common.types import OnStale, Partition, ReplicaId, RunId, RunSettings, WhenFull
from tests.unit.queue.model import Model
from tests.unit.queue.model_stream import Refusal
from tests.unit.queue.ports import answer_after_cut

TRAIN, VALIDATION = Partition.TRAIN, Partition.VALIDATION
REPLICA = ReplicaId("replica-a")
SETTINGS = st.builds(
    RunSettings,
    max_staleness=st.integers(0, 2),
    groups_per_version=st.integers(1, 4),
    on_stale=st.sampled_from(OnStale),
    max_member_issues=st.integers(1, 3),
    lease_seconds=st.just(3000.0),
    max_queue_size=st.sampled_from([1, 2, 100]),
    max_queue_bytes=st.sampled_from([500, 1500, 10**9]),
    when_full=st.sampled_from(WhenFull),
    min_group_members=st.integers(1, 2),
)
PICK = st.integers(0, 10_000)
KEPT_STATES = 12


def action(times=1, **arguments):
    """Marks what may happen in a story: `times` as often as others, with arguments of these strategies."""

    def mark(function):
        function.action = (times, arguments)
        return function

    return mark


def actions_of(kind):
    """A strategy for (name, arguments) of the actions of a class."""
    functions = [(name, getattr(kind, name)) for name in sorted(dir(kind))]
    marked = [(name, *function.action) for name, function in functions if hasattr(function, "action")]
    choices = [
        # A new strategy each time, since equal ones count once.
        st.tuples(st.just(name), st.fixed_dictionaries(arguments))
        for name, times, arguments in marked
        for _ in range(times)
    ]
    return st.one_of(choices)


@dataclass
class Checkpoint:
    """What the trainer has on disk."""

    number: int
    results: list[tuple[int, int, str]]
    ended: frozenset[int]
    consumed: int
    filtered: int
    dropped: int
    version: int


@dataclass
class Trainer:
    """What one trainer has in memory."""

    epoch: int
    version: int
    number: int = 0
    """Of the newest commit whose checkpoint is on disk."""
    cursor: int = 0
    """The next sequence number to feed."""
    ended: set[int] = field(default_factory=set)
    """Sequence numbers that need not be fed again."""
    held: dict[int, int] = field(default_factory=dict)
    """Leased groups that were not used yet, with their attempt."""
    pending: list[tuple[int, int, str]] = field(default_factory=list)
    """Results that no checkpoint contains."""
    consumed: int = 0
    filtered: int = 0


class Story(RuleBasedStateMachine):
    """Subclasses say which queue: `make_port(redis_url, run_id)`, and the server under it."""

    redis_url = ""
    make_port = None
    power = None
    """A server that can lose its power, if it is one."""

    @initialize(settings=SETTINGS, ends_early=st.booleans())
    def begin(self, settings, ends_early):
        self.loop = asyncio.new_event_loop()
        self.redis = Redis.from_url(self.redis_url, retry=Retry(ConstantBackoff(0.05), 3))
        self.run_id = RunId(f"story-{uuid.uuid4().hex[:12]}")
        self.prefix = f"hr:{{{self.run_id}}}:"
        self.settings, self.ends_early = settings, ends_early
        self.port = type(self).make_port(self.redis_url, self.run_id)
        self.do(self.port.open())
        self.model = Model(settings)
        self.checkpoint = None
        self.former_epochs = []
        self.held, self.seen = [], []
        self.top = {TRAIN: 0, VALIDATION: 0}
        self.disk_version = -1
        self.cut, self.was_cut, self.store_lost = None, False, False
        self.kept = None
        self.history = deque(maxlen=KEPT_STATES)
        self.take_over()
        self.feed(3, ends=False)

    def do(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self):
        if hasattr(self, "port"):
            try:
                self.end()
            finally:
                self.do(self.port.close())
                self.do(self.redis.aclose())
                self.loop.close()

    def step(self, expect, call):
        """Compare the queue's answer to `call(client)` with `expect(model)`. When the service dies within the call, it
        was done once or twice."""
        answer, was_cut = self.ask(call)
        expected = expected_of(expect, self.model)
        if was_cut:
            twice = deepcopy(self.model)
            outcomes = [(self.model, expected), (twice, expected_of(expect, twice))]
            seen = self.observe()
            fitting = [model for model, outcome in outcomes if outcome == answer and model.observe() == seen]
            assert fitting, (answer, seen, [(outcome, model.observe()) for model, outcome in outcomes])
            self.model = fitting[0]
        else:
            assert answer == expected, (answer, expected)
        self.remember()
        return answer

    def ask(self, call):
        """The queue's answer, or the reason of its refusal; and whether the service died while it was asked."""
        if self.cut is None:
            return self.do(answer_or_reason(call(self.port.client))), False
        seconds, self.cut, self.was_cut = self.cut, None, True
        return self.do(answer_or_reason(answer_after_cut(self.port, call, seconds=seconds))), True

    def observe(self):
        async def read(queue):
            stats = await queue.get_stats()
            parts = tuple(replace(part, ask_age_seconds=None, commit_age_seconds=None) for part in stats.partitions)
            depths = (parts, stats.policy_version, stats.epoch, stats.commit_number, stats.run_finished)
            return (await queue.get_ledger(), *depths)

        return self.do(answer_or_reason(read(self.port.client)))

    def remember(self):
        if self.power:
            self.history.append((self.power.written_bytes, deepcopy(self.model)))

    def expire(self, leases):
        """Let deadlines pass without waiting for them; any look at the run then ends the leases."""
        for partition in Partition:
            prefix = f"{partition}/"
            names = {lease.removeprefix(prefix): 1 for lease in leases if lease.startswith(prefix)}
            if names:
                self.do(self.redis.zadd(f"{self.prefix}{partition}:leases", names, xx=True))
        for lease in sorted(leases):
            self.model.stream_of(lease).lapse(lease)
        self.observe()
        self.remember()


async def answer_or_reason(call):
    try:
        return await call
    except HeadraceError as error:
        if error.retryable or error.reason == "INTERNAL":
            raise
        return error.reason


def expected_of(expect, model):
    try:
        return expect(model)
    except Refusal as refusal:
        return refusal.args[0]


def token_of(lease_id):
    return lease_id.rpartition("/")[2]
