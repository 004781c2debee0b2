"""What rollouters do: lease, put, put late or again, fail, give back, renew, and vanish."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from services.common.types import FailureReason, ReleaseReason
from tests.unit.queue.story.base import PICK
from tests.unit.queue.story.calls import Calls


class RollouterRules(Calls):
    # Rules have no preconditions: what a cut call leaves depends on the clock, and Hypothesis wants to know beforehand.

    @rule(number=st.integers(1, 6), behind=st.integers(0, 2))
    def lease(self, number, behind):
        """By a replica that adopted the newest version, or lags."""
        self.lease_members(number, max(0, self.trainer.version - behind))

    @rule(number=st.integers(2, 12), behind=st.integers(0, 1))
    def work(self, number, behind):
        """Lease, and put all that is held in one call."""
        self.lease(number, behind)
        self.put_all(self.held)
        self.held = []

    @rule(pick=PICK)
    def put(self, pick):
        self.put_all([self.held.pop(pick % len(self.held))] if self.held else [])

    def picked(self, pick):
        """One lease of all that were ever given; none when none was."""
        return [self.seen[pick % len(self.seen)]] if self.seen else []

    @rule(pick=PICK)
    def put_late_or_again(self, pick):
        self.put_all(self.picked(pick))

    @rule(pick=PICK, reason=st.sampled_from([FailureReason.ENGINE_ERROR, FailureReason.REWARD_TIMEOUT]))
    def fail(self, pick, reason):
        for item, _ in self.picked(pick):
            self.fail_one(item, reason)

    @rule(pick=PICK, reason=st.sampled_from(ReleaseReason))
    def release(self, pick, reason):
        for item, _ in self.picked(pick):
            self.release_one(item, reason)

    @rule(pick=PICK)
    def extend(self, pick):
        for item, _ in self.picked(pick):
            self.extend_one(item)

    @rule(pick=PICK)
    def lapse(self, pick):
        self.expire([item.lease_id for item, _ in self.picked(pick)])

    @rule()
    def holders_die(self):
        """All that is held lapses, and what was leased by an answer that got lost; nobody answers for it."""
        self.expire([lease for stream in self.model.streams.values() for lease in stream.live])
        self.held = []
