"""Every call of the service, made to the queue and to the model."""

from __future__ import annotations

import uuid
from dataclasses import replace

from services.common.convert.trajectory import trajectory_to_proto
from services.common.types import DropReason, FailedMember, Failure, GroupOutcome, GroupResult, Partition, TaskId
from tests.factories import make_task, make_trajectory
from tests.unit.queue.story.base import REPLICA, TRAIN, Story, expected_of

ALL_BYTES = 32 * 1024 * 1024
OUTCOMES = {
    "consumed": (GroupOutcome.CONSUMED, None),
    "filtered": (GroupOutcome.FILTERED, None),
    "dropped:stale": (GroupOutcome.DROPPED, DropReason.STALE),
}


class Calls(Story):
    # The trainer's.

    def enqueue(self, partition, sequences, *, epoch=None, tasks=None, pinned=None, **options):
        tasks = tasks or [task_at(at, partition) for at in sequences]
        epoch = self.trainer.epoch if epoch is None else epoch
        rows = [(task.sequence, task.group_size, (task.task_id, task.messages)) for task in tasks]
        least = {} if pinned is None else {"pinned": pinned}

        async def call(queue):
            answer = await queue.enqueue_tasks(
                tasks, epoch=epoch, partition=partition, pinned_version=pinned, **options
            )
            return answer.num_accepted, answer.remaining_capacity

        return self.step(lambda model: model.feed(epoch, partition, rows, **least, **options), call)

    def tell_version(self, version, *, epoch=None, digest="", **options):
        epoch, digest = self.trainer.epoch if epoch is None else epoch, digest or f"digest-{version}"

        async def call(queue):
            await queue.register_version(version, epoch=epoch, digest=digest, **options)

        return self.step(lambda model: model.register(epoch, version, digest, **options), call)

    def lease_batch(self, partition, num_groups, *, max_bytes=0, again=False, epoch=None):
        epoch = self.trainer.epoch if epoch is None else epoch
        request_id, use_version, batch = uuid.uuid4().hex, self.trainer.version, None

        async def call(queue):
            nonlocal batch
            batch = await queue.lease_batch(
                epoch=epoch,
                partition=partition,
                num_groups=num_groups,
                use_version=use_version,
                wait_seconds=0.0,
                request_id=request_id,
                max_bytes=max_bytes,
            )
            return [group.sequence for group in batch.groups], batch.end_of_data, batch.commit_number, batch.num_ready

        def expect(model):
            most = max_bytes or ALL_BYTES
            return model.lease_batch(epoch, partition, num_groups, use_version, most, request_id)

        for _ in range(1 + again):
            answer = self.step(expect, call)
        if isinstance(answer, str):
            return answer
        for group in batch.groups:
            known = self.model.streams[partition].groups[group.sequence]
            assert (group.attempt, group.oldest_version) == (known.attempt, known.oldest)
            assert [one.lease_id for one in group.trajectories] == [member.lease for member in known.done]
        return batch.groups, batch.commit_number

    def send_commit(self, partition, number, version, rows, *, epoch=None, final=False):
        results, epoch = results_of(rows), self.trainer.epoch if epoch is None else epoch

        async def call(queue):
            return await queue.commit_batch(
                results, epoch=epoch, partition=partition, commit_number=number, policy_version=version, final=final
            )

        return self.step(lambda model: model.commit(epoch, partition, number, version, rows, final=final), call)

    def send_reconcile(self, version, *, epoch=None):
        saved, epoch = self.checkpoint, self.trainer.epoch if epoch is None else epoch
        ended = saved.ended if saved else frozenset()
        first_open = next(at for at in range(len(ended) + 1) if at not in ended)
        numbers = {
            "num_consumed": saved.consumed if saved else 0,
            "num_filtered": saved.filtered if saved else 0,
            "num_dropped": saved.dropped if saved else 0,
        }

        async def call(queue):
            return await queue.reconcile(
                epoch=epoch,
                commit_number=saved.number if saved else 0,
                first_open_sequence=first_open,
                ended_sequences=sorted(at for at in ended if at > first_open),
                policy_version=version,
                **numbers,
            )

        def expect(model):
            totals = {name.removeprefix("num_"): number for name, number in numbers.items()}
            return model.reconcile(
                epoch, number=saved.number if saved else 0, ended=set(ended), version=version, **totals
            )

        return self.step(expect, call)

    def release_batch(self, partition, *, epoch=None):
        epoch = self.trainer.epoch if epoch is None else epoch

        async def call(queue):
            return await queue.release_batch(epoch=epoch, partition=partition)

        return self.step(lambda model: model.release_batch(epoch, partition), call)

    # The rollouters'.

    def lease_members(self, number, version):
        async def call(queue):
            return await queue.lease_tasks(REPLICA, max_members=number, policy_version=version, wait_seconds=0.0)

        leased, is_cut = self.ask(call)
        if isinstance(leased, str):
            assert leased == expected_of(lambda model: model.admit(), self.model)
            return
        tokens = [token_of(item.lease_id) for item in leased.assignments][:1] or ["-"]
        if is_cut:
            # Leases of an answer that nobody got.
            known = {token_of(lease) for stream in self.model.streams.values() for lease in stream.issues}
            tokens = [*(self.live_tokens() - known - set(tokens)), *tokens]
        for token in tokens:
            expected = self.model.lease(number, version, token)
        answer = [(item.lease_id, item.min_version) for item in leased.assignments], leased.wanted_version
        assert answer == expected, (answer, expected)
        assert leased.run_finished == self.model.finished
        for item in leased.assignments:
            assert item.task == task_at(item.task.sequence, item.key.partition)
        self.held += [(item, version) for item in leased.assignments]
        self.seen += [(item, version) for item in leased.assignments]
        self.remember()

    def live_tokens(self):
        leases = [
            lease for name in Partition for lease in self.do(self.redis.zrange(f"{self.prefix}{name}:leases", 0, -1))
        ]
        return {token_of(lease.decode()) for lease in leases}

    def put_all(self, items):
        if not items:
            return
        results = [result_of(item, version) for item, version in items]
        sizes = [len(trajectory_to_proto(result).SerializeToString()) for result in results]

        async def call(queue):
            return [str(outcome) for outcome in await queue.put_trajectories(results)]

        def expect(model):
            model.admit()
            rows = zip(results, sizes, strict=True)
            return [model.stream_of(one.lease_id).put(one.lease_id, one.oldest_version, size) for one, size in rows]

        self.step(expect, call)

    def fail_one(self, item, reason):
        failed = FailedMember(key=item.key, lease_id=item.lease_id, failure=Failure(reason=reason, message="It broke."))

        async def call(queue):
            return [str(outcome) for outcome in await queue.put_trajectories([failed])]

        self.step(lambda model: [model.let(item.lease_id).fail(item.lease_id, reason.value)], call)

    def release_one(self, item, reason):
        async def call(queue):
            await queue.release_tasks([item.lease_id], reason=reason)

        self.step(lambda model: model.let(item.lease_id).release(item.lease_id, reason.value), call)

    def extend_one(self, item):
        async def call(queue):
            return await queue.extend_lease(REPLICA, [item.lease_id]) != ()

        self.step(lambda model: model.let(item.lease_id).extend(item.lease_id), call)


def token_of(lease_id):
    return lease_id.rpartition("/")[2]


def task_at(sequence, partition=TRAIN):
    return make_task(sequence, partition=partition, group_size=2 + sequence % 2)


def result_of(item, version):
    """A trajectory of a size that differs from task to task."""
    at = item.task.sequence
    return replace(
        make_trajectory(at, item.key.member, version=version),
        key=item.key,
        lease_id=item.lease_id,
        completion="x" * (at % 3 * 50),
        traceparent=item.traceparent,
    )


def results_of(rows):
    return [
        GroupResult(
            task_id=TaskId(f"{at:08d}"),
            attempt=attempt,
            outcome=OUTCOMES[column][0],
            drop_reason=OUTCOMES[column][1],
            sequence=at,
        )
        for at, attempt, column in rows
    ]
