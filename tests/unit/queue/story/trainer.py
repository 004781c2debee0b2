"""What trainers do: feed, collect, use, commit, die, and wake up too late."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import count, islice

from hypothesis import strategies as st

from services.common.types import Partition, TaskId
from tests.unit.queue.story.base import PICK, TRAIN, VALIDATION, Checkpoint, Trainer, action
from tests.unit.queue.story.calls import OUTCOMES, Calls, task_at


class TrainerRules(Calls):
    def heal(self):
        """A run that is gone, or was brought back with a larger epoch than the clock gave since, is taken over."""
        if not self.model.exists or self.trainer.epoch < self.model.epoch:
            self.take_over()

    @action(times=2, number=st.integers(1, 5), ends=st.booleans())
    def feed(self, number, ends):
        self.heal()
        trainer = self.trainer
        still_open = (at for at in count(trainer.cursor) if at not in trainer.ended)
        self.offer(list(islice(still_open, number)), ends=ends)

    def offer(self, offered, *, ends):
        trainer = self.trainer
        given_up = sum(column != "consumed" for _, _, column in trainer.pending)
        answer = self.enqueue(TRAIN, offered, end_of_data=ends, num_filtered=given_up)
        if offered:
            trainer.cursor = [*offered, offered[-1] + 1][answer[0]]
            self.top[TRAIN] = max(self.top[TRAIN], trainer.cursor)

    @action(back=st.integers(1, 6))
    def feed_again(self, back):
        self.heal()
        top = self.top[TRAIN]
        self.enqueue(TRAIN, range(max(0, top - back), top))

    @action(pick=PICK, same_id=st.booleans())
    def feed_other_content(self, pick, same_id):
        """Another task under an id or a sequence number that is taken, behind a good one: neither is added."""
        self.heal()
        if self.model.train.groups:
            at = sorted(self.model.train.groups)[pick % len(self.model.train.groups)]
            good, other = task_at(self.top[TRAIN] + 1), task_at(at)
            changes = {"seed": 9, "messages": ()} if same_id else {"task_id": TaskId("other")}
            tasks = sorted([good, replace(other, **changes)], key=lambda task: task.sequence)
            assert self.enqueue(TRAIN, (), tasks=tasks) == "CONFLICT"

    @action(number=st.integers(1, 2), pinned=st.booleans(), ends=st.booleans())
    def feed_validation(self, number, pinned, ends):
        self.heal()
        top = self.top[VALIDATION]
        pinned = self.trainer.version if pinned else None
        self.enqueue(VALIDATION, range(top, top + number), pinned=pinned, end_of_data=ends)
        self.top[VALIDATION] = top + number

    @action(times=2)
    def register(self):
        self.heal()
        if self.trainer.version - self.model.base < 3:
            self.disk_version = self.trainer.version = self.disk_version + 1
            self.tell_version(self.trainer.version)

    @action(older=st.booleans())
    def register_wrongly(self, older):
        """An older number, or the same number for other weights."""
        self.heal()
        version = self.model.version - older
        if version >= 0 and (older or self.model.digest):
            assert self.tell_version(version, digest="other") == ("INVALID_INPUT" if older else "CONFLICT")

    def take(self, num_groups, **options):
        """Lease groups, as a trainer that looks at what it gets; returns how many."""
        trainer = self.trainer
        groups, number = self.lease_batch(TRAIN, num_groups, **options)
        for group in groups:
            assert trainer.version - group.oldest_version <= self.settings.max_staleness, "older than the bound"
        used_before = [group for group in groups if group.sequence in trainer.ended or group.sequence in trainer.held]
        if number != trainer.number or used_before:
            assert self.store_lost, "handed out twice, or a commit is unknown"
            self.reconcile()
            return 0
        trainer.held |= {group.sequence: group.attempt for group in groups}
        return len(groups)

    @action(column=st.sampled_from(list(OUTCOMES)))
    def use(self, column):
        """A step of the optimiser, or what is left out of it."""
        if not self.trainer.held:
            self.heal()
            self.take(1)
        trainer = self.trainer
        rows = [(at, attempt, column) for at, attempt in trainer.held.items()]
        trainer.pending += rows
        trainer.ended |= set(trainer.held)
        trainer.held = {}
        trainer.consumed += len(rows) if column == "consumed" else 0
        trainer.filtered += len(rows) if column == "filtered" else 0

    @action(times=2, arrives=st.booleans())
    def commit(self, arrives):
        """Save a checkpoint and commit it; the commit may not arrive before the trainer dies."""
        self.heal()
        self.save()
        if arrives:
            self.commit_saved()
        else:
            self.take_over()

    def save(self):
        trainer, stream = self.trainer, self.model.train
        trainer.ended |= stream.ended
        tasks = stream.ledger().tasks
        dropped = sum(tasks.dropped.values()) + tasks.dead_lettered
        self.checkpoint = Checkpoint(
            number=trainer.number + 1,
            results=trainer.pending,
            ended=frozenset(trainer.ended),
            consumed=trainer.consumed,
            filtered=trainer.filtered,
            # A store that regained older state knows of fewer.
            dropped=max(dropped, self.checkpoint.dropped if self.checkpoint else 0),
            version=trainer.version,
        )
        trainer.pending, trainer.number = [], trainer.number + 1

    def commit_saved(self):
        saved = self.checkpoint
        if self.send_commit(TRAIN, saved.number, saved.version, saved.results) == "RECONCILE_REQUIRED":
            assert self.store_lost
            self.reconcile()

    @action(ahead=st.integers(2, 4))
    def commit_out_of_order(self, ahead):
        self.heal()
        number = self.model.commit_number + ahead
        assert self.send_commit(TRAIN, number, self.trainer.version, []) == "RECONCILE_REQUIRED"

    @action()
    def repeat_commit(self):
        self.heal()
        if self.checkpoint:
            self.commit_saved()

    @action(number=st.integers(1, 2))
    def measure(self, number):
        """Validation: lease, and commit without a number."""
        self.heal()
        groups, _ = self.lease_batch(VALIDATION, number)
        rows = [(group.sequence, group.attempt, "consumed") for group in groups]
        self.send_commit(VALIDATION, 0, 0, rows)

    def reconcile(self):
        trainer = self.trainer
        if trainer.pending or self.checkpoint is None:
            self.save()
        self.send_reconcile(trainer.version)
        self.release_batch(TRAIN)
        self.tell_version(trainer.version)
        trainer.held, trainer.cursor = {}, 0
        self.store_lost = False

    @action()
    def take_over(self):
        """The trainer dies and loses what is not in its checkpoint; the next one begins from there."""
        owner, saved, epoch = uuid.uuid4().hex, self.checkpoint, 0
        if hasattr(self, "trainer"):
            self.former_epochs.append(self.trainer.epoch)

        async def call(queue):
            nonlocal epoch
            state = await queue.create_run(self.settings, owner_id=owner)
            epoch = state.epoch
            return state.epoch, state.commit_number, state.created

        known_version = self.model.version
        epoch, number, created = self.step(lambda model: model.create(owner, epoch), call)
        self.disk_version += 1
        self.trainer = Trainer(epoch=epoch, version=self.disk_version)
        if saved:
            self.trainer.number, self.trainer.ended = saved.number, set(saved.ended)
            self.trainer.consumed, self.trainer.filtered = saved.consumed, saved.filtered
            if not created and number in {saved.number - 1, saved.number}:
                self.commit_saved()
            else:
                self.send_reconcile(max(saved.version, known_version))
        for partition in Partition:
            self.release_batch(partition)
        self.tell_version(self.disk_version, branch=saved is not None or not created)

    @action()
    def former_trainer_wakes(self):
        """It was only frozen: each of its calls is refused and changes nothing."""
        self.heal()
        epoch = next((epoch for epoch in self.former_epochs if epoch < self.model.epoch), None)
        if epoch is None:
            return
        answers = [
            self.enqueue(TRAIN, [self.top[TRAIN]], epoch=epoch),
            self.tell_version(self.trainer.version + 1, epoch=epoch),
            self.lease_batch(TRAIN, 1, epoch=epoch),
            self.send_commit(TRAIN, self.model.commit_number + 1, self.trainer.version, [], epoch=epoch),
            self.release_batch(TRAIN, epoch=epoch),
            self.send_reconcile(self.trainer.version, epoch=epoch),
        ]
        assert set(answers) == {"STALE_EPOCH"}
