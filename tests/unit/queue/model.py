"""The rules of the queue, told a second time and as simply as they can be. These two files are the specification.

`model_stream.py` says what one partition holds and how a group, a member and a lease end. This file has one method per
call of the service. Whatever the queue answers and counts must be what they say; `story/` compares after every step.
"""

from __future__ import annotations

import math

from services.common.types import Partition, RunSettings
from tests.unit.queue.model_stream import UNBOUNDED, Group, Refusal, Stream, by_reason

NEVER = -math.inf


class Model:
    """The run: what each call of the service does. A run that does not exist refuses everything but `create`."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.exists = self.finished = False
        self.epoch, self.owner = 0, ""
        self.commit_number = 0
        self.version, self.digest = -1, ""
        self.base, self.carry = -1, 0
        """Version at the committed position, and groups consumed since it was assigned."""
        self.streams = {partition: Stream(partition, settings) for partition in Partition}
        self.train = self.streams[Partition.TRAIN]

    def admit(self, epoch: int | None = None) -> None:
        """An older epoch is refused. A newer one than known is that of a takeover which the store lost."""
        if not self.exists:
            raise Refusal("NOT_FOUND")
        if epoch is not None and epoch < self.epoch:
            raise Refusal("STALE_EPOCH")
        if epoch is not None and epoch > self.epoch:
            self.epoch, self.owner = epoch, ""

    def create(self, owner: str, first_epoch: int) -> tuple[int, int, bool]:
        """A new owner takes the run over under the next epoch; the first one is the clock's."""
        created = not self.exists
        if created:
            self.exists, self.epoch = True, first_epoch
        elif owner != self.owner:
            self.epoch += 1
        self.owner = owner
        return self.epoch, self.commit_number, created

    def register(self, epoch: int, version: int, digest: str, *, branch: bool = False) -> None:
        """Versions grow, each is one set of weights. Capacity counts from the first version of a resumed trainer."""
        self.admit(epoch)
        if version < self.version:
            raise Refusal("INVALID_INPUT")
        if version == self.version and self.digest not in {"", digest}:
            raise Refusal("CONFLICT")
        self.version, self.digest = version, digest
        if branch and self.base != version:
            self.move_base(version)
        elif self.base < 0:
            self.base = version

    def move_base(self, version: int) -> None:
        """Capacity counts from `version` on, and what is open takes its places from there, in order."""
        self.base, self.carry = version, 0
        for place, at in enumerate(sorted(self.train.groups)):
            group = self.train.groups[at]
            group.min_version = max(group.min_version, self.least_at(place))

    def least_at(self, place: int) -> int:
        """The n-th group of the bound is used n // per_version versions after the base."""
        return self.base + max(0, place // self.settings.groups_per_version - self.settings.max_staleness)

    def feed(
        self,
        epoch: int,
        partition: Partition,
        tasks: list[tuple[int, int, object]],
        *,
        end_of_data: bool = False,
        num_filtered: int = 0,
        pinned: int = -1,
    ) -> tuple[int, int]:
        """Tasks of (sequence, size, content) in order, as far as the capacity rule admits; known ones are accepted."""
        self.admit(epoch)
        if self.finished:
            raise Refusal("RUN_FINISHED")
        stream, per_version, bound = self.streams[partition], self.settings.groups_per_version, UNBOUNDED
        if any(at in stream.groups and stream.groups[at].content != content for at, _, content in tasks):
            raise Refusal("CONFLICT")
        if stream.is_train:
            bound = (self.settings.max_staleness + self.version - self.base + 1) * per_version
        used = max(0, len(stream.groups) + self.carry - num_filtered)
        accepted = added = 0
        for at, size, content in tasks:
            if at not in stream.ended and at not in stream.groups:
                if used >= bound:
                    break
                stream.groups[at] = Group(at, size, content, self.least_at(used) if stream.is_train else pinned)
                stream.tasks["fed"] += 1
                used, added = used + 1, added + 1
            accepted += 1
        if end_of_data and accepted == len(tasks):
            stream.data_ended = True
        elif added:
            stream.data_ended = False
        return accepted, min(UNBOUNDED, max(0, bound - used))

    def stream_of(self, lease: str) -> Stream:
        return self.streams[Partition(lease.partition("/")[0])]

    def let(self, lease: str) -> Stream:
        """The stream of a lease, for a rollouter's call."""
        self.admit()
        return self.stream_of(lease)

    def observe(self) -> object:
        """What GetLedger and GetStats say."""
        if not self.exists:
            return "NOT_FOUND"
        streams = self.streams.values()
        ledgers, depths = tuple(one.ledger() for one in streams), tuple(one.stats() for one in streams)
        return ledgers, depths, self.version, self.epoch, self.commit_number, self.finished

    def hidden(self) -> tuple:
        """What no call says."""
        rest = [number for one in self.streams.values() for number in (int(one.data_ended), one.wanted)]
        return self.base, self.carry, self.digest, *rest

    def may_begin(self, stream: Stream) -> bool:
        """With `block`, no new training group begins while the queue is full, unless the trainer waits for more."""
        settings = self.settings
        if not stream.is_train or settings.when_full != "block":
            return True
        has_room = len(stream.in_order("ready")) < settings.max_queue_size
        has_room = has_room and stream.queued_bytes < settings.max_queue_bytes
        return has_room or len(stream.in_order("open", "ready")) < stream.wanted

    def lease(self, room: int, version: int, token: str) -> tuple[list[tuple[str, int]], int | None]:
        """Members in order of (sequence, member), validation first: each lease with the oldest version that may sample.

        What `version` is too old for is left, and the smallest version that would do is told.
        """
        self.admit()
        leases: list[tuple[str, int]] = []
        told: list[int] = []
        for stream in reversed(self.streams.values()):
            num_timely = self.num_timely(stream, version)
            for group in stream.in_order("fresh", "open"):
                least = max(group.min_version, self.version - self.settings.max_staleness)
                least = least if stream.is_train else group.min_version
                if len(leases) == room or not group.num("pending"):
                    continue
                if group.state == "fresh" and (num_timely == NEVER or not self.may_begin(stream)):
                    continue
                if least > version:
                    told.append(least)
                    continue
                if group.state == "fresh" and num_timely < 1:
                    told += [version + 1] if version < self.version else []
                    num_timely = NEVER
                    continue
                if group.state == "fresh":
                    num_timely -= 1
                    group.state = "open"
                    if stream.waits:
                        group.waited_for = group.min_version = version
                        least = max(version, self.version - self.settings.max_staleness)
                given = stream.issue(group, room - len(leases), token)
                leases += [(lease, least) for lease in given]
        return leases, min(told, default=None)

    # With `wait`. A begun group is due at its oldest version + max_staleness: it can be used at no later version.

    def due_by(self, version: int) -> tuple[int, int, int]:
        """Groups that the trainer will lease at versions up to this one, and the unfinished and ready ones among those
        that are due by then. A group is not counted once a lease of it lapsed."""
        train, oldest = self.train, version - self.settings.max_staleness
        slots = (version - self.base + 1) * self.settings.groups_per_version - self.carry
        unfinished = [one for one in train.in_order("open") if one.waited_for is not None and one.waited_for <= oldest]
        ready = [one for one in train.in_order("ready") if not one.is_spent and one.oldest <= oldest]
        return slots - len(train.in_order("leased")), len(unfinished), len(ready)

    def num_timely(self, stream: Stream, version: int) -> float:
        """How many groups may begin under a version, so that there are slots for all that will be due."""
        if not stream.waits:
            return math.inf
        last = self.version + self.settings.max_staleness
        free = [math.inf]
        for due in range(max(version + self.settings.max_staleness, self.version), last + 1):
            slots, unfinished, ready = self.due_by(due)
            # What the trainer waits for may begin in any case.
            free.append((max(slots, stream.wanted) if due == last else slots) - unfinished - ready)
        return min(free)

    def limits(self, use_version: int, num_groups: int, target: int) -> tuple[dict[int, int], int]:
        """By oldest version, how many younger groups a batch may take; and how many unfinished ones it is held for."""
        limits, held = {}, 0
        for due in range(use_version, use_version + self.settings.max_staleness):
            slots, unfinished, ready = self.due_by(due)
            left = max(0, max(slots, num_groups) - unfinished - ready)
            limits[due - self.settings.max_staleness] = left
            if ready + left < target:
                held = unfinished
        return limits, held

    def lease_batch(
        self, epoch: int, partition: Partition, num_groups: int, use_version: int, max_bytes: int, request_id: str
    ) -> tuple[list[int], bool, int, int]:
        """Ready groups in order, none older than the bound, once enough are ready or all the rest is.

        A repeated request gets what it got before, as far as that is still leased.
        """
        self.admit(epoch)
        stream = self.streams[partition]
        batch = [at for at in stream.batch if at in stream.groups and stream.groups[at].state == "leased"]
        if not batch or stream.request != (request_id, epoch):
            if stream.is_train:
                stream.retire(use_version - self.settings.max_staleness)
            ready = stream.in_order("ready")
            is_rest = stream.data_ended and len(ready) == len(stream.groups) - len(stream.in_order("leased"))
            target = min(len(ready), num_groups) if is_rest else num_groups
            is_enough = 0 < len(ready) >= target
            limits, held = self.limits(use_version, num_groups, target) if is_enough and stream.waits else ({}, 0)
            batch, total = [], 0
            if not is_enough or held:
                stream.wanted, stream.held = num_groups, held
            else:
                for group in ready:
                    younger = [oldest for oldest in limits if group.is_spent or group.oldest > oldest]
                    if len(batch) == target or not all(limits[oldest] for oldest in younger):
                        continue
                    total += group.num_bytes
                    if batch and total > max_bytes:
                        break
                    limits |= {oldest: limits[oldest] - 1 for oldest in younger}
                    group.state, group.is_spent = "leased", False
                    batch.append(group.sequence)
                stream.request, stream.batch, stream.wanted, stream.held = (request_id, epoch), list(batch), 0, 0
        is_over = stream.data_ended and not stream.in_order("fresh", "open", "ready")
        return batch, self.finished or is_over, self.commit_number, len(stream.in_order("ready"))

    def release_batch(self, epoch: int, partition: Partition) -> int:
        """Whatever is leased is ready again, whoever leased it."""
        self.admit(epoch)
        stream = self.streams[partition]
        leased = stream.in_order("leased")
        for group in leased:
            group.state = "ready"
        stream.batch = []
        return len(leased)

    def commit(
        self,
        epoch: int,
        partition: Partition,
        number: int,
        version: int,
        results: list[tuple[int, int, str]],
        *,
        final: bool = False,
    ) -> int:
        """Results of (sequence, attempt, column) become final, once per number; an earlier number is done already."""
        self.admit(epoch)
        stream = self.streams[partition]
        if not stream.is_train:
            self.apply(stream, 0, results)
            return self.commit_number
        if number > self.commit_number + 1:
            raise Refusal("RECONCILE_REQUIRED")
        if number == self.commit_number + 1:
            self.apply(stream, number, results)
            self.commit_number = number
            base = max(self.base, version)
            consumed = sum(column == "consumed" for _, _, column in results)
            self.carry = max(0, self.carry + consumed - (base - self.base) * self.settings.groups_per_version)
            self.base = base
        if final:
            self.finished = True
            for other in self.streams.values():
                for group in list(other.groups.values()):
                    other.end(group, "dropped:run_ended")
        return self.commit_number

    def apply(self, stream: Stream, number: int, results: list[tuple[int, int, str]]) -> None:
        for at, attempt, column in results:
            group = stream.groups.get(at)
            if group is None and at not in stream.ended:
                # The store lost the task; it is entered as if it had been fed.
                stream.ended.add(at)
                stream.tasks.update(["fed", column])
            elif group is not None and (group.attempt <= attempt or column == "consumed"):
                stream.end(group, column)
            if column == "consumed" and stream.is_train:
                assert stream.trained.setdefault((at, attempt), number) == number, "trained twice"
        stream.tasks["commits"] += 1

    def reconcile(
        self,
        epoch: int,
        *,
        number: int,
        ended: set[int],
        version: int,
        consumed: int,
        filtered: int,
        dropped: int,
    ) -> int:
        """The trainer's checkpoint becomes the truth; what it does not know of is open again, or fed again."""
        self.admit(epoch)
        stream = self.train
        removed = [at for at in stream.groups if at in ended]
        for at in removed:
            del stream.groups[at]
        stream.ended, stream.data_ended, stream.wanted, stream.held = set(ended), False, 0, 0
        stream.trained = {name: by for name, by in stream.trained.items() if by <= number}
        tasks = stream.tasks
        tasks["consumed"], tasks["filtered"], tasks["commits"] = consumed, filtered, number
        known = tasks["dead_lettered"] + sum(by_reason(tasks, "dropped:").values())
        tasks["dropped:reconciled"] += max(0, dropped - known)
        tasks["fed"] = consumed + filtered + max(known, dropped) + len(stream.groups)
        tasks["refilled"] = min(tasks["fed"], tasks["refilled"])
        if version > self.version:
            self.version, self.digest = version, ""
        self.commit_number, self.finished = number, False
        self.move_base(self.version)
        return len(removed)
