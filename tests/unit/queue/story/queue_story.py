"""Random stories of one run: a trainer and its successors, rollouters, and what may go wrong around them.

Each rule is something that a trainer, a rollouter or fate does. Every call goes to the real queue and to the model
(`model.py`), and the answers must be the same; after each rule both tables of the ledger balance and every column and
depth is the model's. At its end a story is drained, and the run finished: every task that was ever fed has ended once,
and Redis holds nothing but the documented keys.

The trainer here keeps to the protocol of the real one: checkpoint before commit, reconcile when the queue is out of
step, a takeover that repeats the commit, releases, and branches off.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from services.common.types import FailureReason, Partition
from tests.unit.queue.model import Model
from tests.unit.queue.story.base import KEPT_STATES, TRAIN, action, actions_of
from tests.unit.queue.story.calls import OUTCOMES
from tests.unit.queue.story.rollouter import RollouterRules
from tests.unit.queue.story.trainer import TrainerRules

DOCUMENTED = ("ended", "consumed", "lapsed", "dead", "state", "batch", "ledger")
"""Keys of a partition that a finished run leaves; all are bounded."""


class Actions(TrainerRules, RollouterRules):
    """Everything that may happen."""

    @action(
        times=6,
        num_groups=st.integers(1, 3),
        column=st.sampled_from(["consumed", "consumed", "filtered"]),
        publishes=st.booleans(),
    )
    def train(self, num_groups, column, publishes):
        """What a healthy trainer does all day; there may be several updates to a version."""
        self.feed(num_groups + 1, ends=False)
        self.work(12, 0)
        self.take(num_groups)
        self.use(column)
        if publishes:
            self.register()
        self.commit(arrives=True)

    @action(times=4, num_groups=st.integers(1, 3), small=st.booleans(), again=st.booleans(), after_work=st.booleans())
    def collect(self, num_groups, small, again, after_work):
        """Lease groups and keep them for now."""
        if after_work:
            self.feed(num_groups + 1, ends=False)
            self.work(12, 0)
        self.heal()
        self.take(num_groups, max_bytes=700 if small else 0, again=again)

    # Fate.

    @action(seconds=st.floats(0.0, 0.003))
    def cut_the_next_call(self, seconds):
        """The service dies within the next call, wherever that is then; the caller asks again."""
        self.cut = seconds

    @action(what=st.sampled_from(["the service dies", "the service dies", "rolled back", "wiped"]))
    def disaster(self, what):
        """One rule for all, so that stories do not consist of them."""
        if what == "the service dies":
            self.do(self.port.crash())
        elif what == "wiped":
            self.do(self.restore({}))
            self.lose(Model(self.settings))
        else:
            self.roll_back()

    def roll_back(self):
        """The store comes back as it was at the newest copy."""
        if self.kept:
            self.do(self.restore(self.kept[0]))
            self.lose(deepcopy(self.kept[1]))

    @action(times=2, column=st.sampled_from(list(OUTCOMES)), publishes=st.booleans(), arrives=st.booleans())
    def lose_a_day(self, column, publishes, arrives):
        """The store forgets what was done since a copy; the trainer has used groups of that time, and commits them."""
        self.feed(1, ends=False)
        self.work(12, 0)
        self.keep_state()
        self.feed(2, ends=False)
        if publishes:
            # What is too old then is issued again, as an attempt that the copy does not know.
            self.register()
            self.take(1)
        self.work(12, 0)
        self.use(column)
        self.roll_back()
        self.commit(arrives=arrives)

    @action()
    def keep_state(self):
        """Keep a copy of all that the store holds: what is wanted does not expire, and the rest is not kept."""
        if self.model.exists:
            dumped = self.do(self.dump())
            self.kept = (dumped, deepcopy(self.model))
            lasting = Counter(
                kind_of(key.decode().removeprefix(self.prefix)) for key, (_, ttl) in dumped.items() if not ttl
            )
            for name, stream in self.model.streams.items():
                num_results = sum(len(group.done) for group in stream.groups.values())
                num_kept = [lasting[f"{name}:{kind}"] for kind in ("group", "task", "payload")]
                assert num_kept == [len(stream.groups), len(stream.groups), num_results], num_kept

    @action()
    def reconcile_after_ends(self):
        """Tasks fail for good in a store that lost a commit; the checkpoint, now the truth, does not know of it."""
        self.keep_state()
        self.train(1, column="consumed", publishes=True)
        self.roll_back()
        self.feed(1, ends=True)
        for _ in range(self.settings.max_member_issues):
            self.lease(12, 0)
            for item, _ in self.held:
                self.fail_one(item, FailureReason.AGENT_ERROR)
            self.held = []
        self.take(1)

    def lose(self, model):
        self.model, self.store_lost = model, True
        self.history.clear()
        self.remember()

    async def dump(self):
        keys = await self.redis.keys(self.prefix + "*")
        return {key: (await self.redis.dump(key), max(0, await self.redis.pttl(key))) for key in keys}

    async def restore(self, dumped):
        async with self.redis.pipeline(transaction=True) as pipeline:
            for key in await self.redis.keys(self.prefix + "*"):
                pipeline.delete(key)
            for key, (value, ttl) in dumped.items():
                pipeline.restore(key, ttl, value)
            await pipeline.execute()

    @action(back=st.integers(0, KEPT_STATES - 1), share=st.floats(0.0, 1.0))
    def lose_power(self, back, share):
        """The newest part of the log never reached the disk: the store is what it was before some earlier call."""
        if not self.power:
            return
        now = self.power.written_bytes
        start = self.history[max(0, len(self.history) - 1 - back)][0]
        self.power.lose_power(keep_bytes=start + int(share * (now - start)))
        seen, hidden = self.observe(), self.do(self.hidden())
        past = [model for _, model in self.history if model.observe() == seen and model.hidden() == hidden]
        assert past, (seen, hidden)
        # The log may end between a payload and the script that takes it.
        self.was_cut = True
        self.lose(past[-1])

    async def hidden(self):
        """What no call tells."""
        names = ("base_version", "carry", "policy_digest")
        base, carry, digest = [value or b"" for value in await self.redis.hmget(self.prefix + "run", names)]
        states = [await self.redis.hmget(f"{self.prefix}{name}:state", "data_ended", "wanted") for name in Partition]
        numbers = [int(value or 0) for state in states for value in state]
        return int(base or -1), int(carry or 0), digest.decode(), *numbers

    # What must hold.

    @invariant()
    def the_queue_is_what_the_model_says(self):
        if not hasattr(self, "trainer"):
            return
        seen = self.observe()
        assert seen == self.model.observe()
        hidden = self.do(self.hidden())
        assert hidden == self.model.hidden(), (hidden, self.model.hidden())
        for ledger in seen[0] if self.model.exists else ():
            assert (ledger.tasks.lost, ledger.trajectories.lost, ledger.trained_twice) == (0, 0, 0), ledger

    def end(self):
        """A healthy fleet finishes whatever the story left behind, or the run ends early."""
        self.cut = None
        self.take_over()
        if self.ends_early:
            self.feed(3, ends=False)
            self.lease(1, 0)
        else:
            self.drain()
        self.close_run()
        self.the_queue_is_what_the_model_says()
        kept = {key.decode().removeprefix(self.prefix) for key in self.do(self.redis.keys(self.prefix + "*"))}
        lists = {f"{name}:{key}" for name in Partition for key in DOCUMENTED}
        left = {key for key in kept - lists - {"run", "replicas", "heard"} if not self.goes_away(key)}
        assert not left, left

    def drain(self):
        for _ in range(80):
            self.offer([at for at in range(self.top[TRAIN]) if at not in self.trainer.ended], ends=True)
            self.holders_die()
            self.work(1000, 0)
            while self.take(3) or self.take(1):
                pass
            self.use("consumed")
            self.measure(2)
            self.commit(arrives=True)
            self.register()
            ended = self.model.train.ended | self.trainer.ended
            if ended.issuperset(range(self.top[TRAIN])) and not self.model.train.groups:
                break
        else:
            raise AssertionError("the run does not drain")
        self.work(1000, 0)
        self.measure(1)

    def close_run(self):
        self.send_commit(TRAIN, self.trainer.number + 1, self.trainer.version, [], final=True)
        assert self.enqueue(TRAIN, [self.top[TRAIN]]) == "RUN_FINISHED"
        self.lease(3, 0)
        self.put_all(self.held)
        self.holders_die()
        for stream in self.model.streams.values():
            assert not stream.groups
            assert not stream.live

    def goes_away(self, key):
        """A body that was offered and not admitted, or what a call left that was cut, expires by itself."""
        is_known = ":task:" in key or (":payload:" in key and self.was_cut)
        return is_known and self.do(self.redis.ttl(self.prefix + key)) > 0


def kind_of(key):
    return ":".join(key.split(":")[:2])


class QueueStory(Actions):
    """The state machine. One rule draws every action by its weight, where a rule for each would give every story only
    a random half of them; and no precondition asks what a cut call has left, which the clock decides."""

    @rule(step=actions_of(Actions))
    def act(self, step):
        name, arguments = step
        getattr(self, name)(**arguments)
