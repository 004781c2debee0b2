"""What rollouters do: lease, put, put late or again, fail, give back, renew, and vanish."""

from __future__ import annotations

from hypothesis import strategies as st

from services.common.types import FailureReason, ReleaseReason
from tests.unit.queue.story.base import PICK, action
from tests.unit.queue.story.calls import Calls

NUM_RECENT = 16


class RollouterRules(Calls):
    @action(times=3, number=st.integers(1, 6), behind=st.integers(0, 2))
    def lease(self, number, behind):
        """By a replica that adopted the newest version, or lags."""
        self.lease_members(number, max(0, self.trainer.version - behind))

    @action(times=4, number=st.integers(2, 12), behind=st.integers(0, 1))
    def work(self, number, behind):
        """Lease, and put all that is held in one call."""
        self.lease(number, behind)
        self.put_all(self.held)
        self.held = []

    @action(times=4, pick=PICK)
    def put(self, pick):
        if not self.held:
            self.lease(4, 0)
        self.put_all([self.held.pop(pick % len(self.held))] if self.held else [])

    def picked(self, pick):
        """One lease of the newest that were given, live or not; some are given first when none is live."""
        if not any(stream.live for stream in self.model.streams.values()):
            self.lease(4, 0)
        recent = self.seen[-NUM_RECENT:]
        return [recent[pick % len(recent)]] if recent else []

    @action(times=2, pick=PICK)
    def put_late_or_again(self, pick):
        self.put_all(self.picked(pick))

    @action(times=2, pick=PICK, reason=st.sampled_from([FailureReason.ENGINE_ERROR, FailureReason.REWARD_TIMEOUT]))
    def fail(self, pick, reason):
        for item, _ in self.picked(pick):
            self.fail_one(item, reason)

    @action(pick=PICK, reason=st.sampled_from(ReleaseReason))
    def release(self, pick, reason):
        for item, _ in self.picked(pick):
            self.release_one(item, reason)

    @action(pick=PICK)
    def extend(self, pick):
        for item, _ in self.picked(pick):
            self.extend_one(item)

    @action(times=2, pick=PICK)
    def lapse(self, pick):
        self.expire([item.lease_id for item, _ in self.picked(pick)])

    @action()
    def holders_die(self):
        """All that is held lapses, and what was leased by an answer that got lost; nobody answers for it."""
        self.expire([lease for stream in self.model.streams.values() for lease in stream.live])
        self.held = []
