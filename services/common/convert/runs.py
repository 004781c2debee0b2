"""Lists of runs, and what became of tasks that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.v1 import queue_service_pb2

from services.common.convert.queue import partition_from_proto, partition_to_proto
from services.common.convert.times import time_from_proto, time_to_proto
from services.common.types import DeadLetter, RunId, RunSummary, TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable


def letters_to_proto(letters: Iterable[DeadLetter]) -> queue_service_pb2.GetDeadLettersResponse:
    """Return the wire form of dead letters."""
    return queue_service_pb2.GetDeadLettersResponse(
        letters=[
            queue_service_pb2.DeadLetter(
                partition=partition_to_proto(letter.partition),
                task_id=letter.task_id,
                attempt=letter.attempt,
                sequence=letter.sequence,
                time=time_to_proto(letter.time),
                reasons=letter.reasons,
            )
            for letter in letters
        ]
    )


def letters_from_proto(wire: queue_service_pb2.GetDeadLettersResponse) -> tuple[DeadLetter, ...]:
    """Return dead letters."""
    return tuple(
        DeadLetter(
            partition=partition_from_proto(letter.partition),
            task_id=TaskId(letter.task_id),
            attempt=letter.attempt,
            sequence=letter.sequence,
            time=time_from_proto(letter.time),
            reasons=tuple(letter.reasons),
        )
        for letter in wire.letters
    )


def summary_to_proto(summary: RunSummary) -> queue_service_pb2.RunSummary:
    """Return the wire form of one line of a list of runs."""
    return queue_service_pb2.RunSummary(
        run_id=summary.run_id,
        format=summary.format,
        readable=summary.readable,
        finished=summary.finished,
        epoch=summary.epoch,
        commit_number=summary.commit_number,
        policy_version=summary.policy_version,
        payload_bytes=summary.payload_bytes,
        open_tasks=summary.open_tasks,
        create_time=time_to_proto(summary.create_time),
        trainer_idle_seconds=summary.trainer_idle_seconds,
        idle_seconds=summary.idle_seconds,
    )


def summary_from_proto(wire: queue_service_pb2.RunSummary) -> RunSummary:
    """Return one line of a list of runs."""
    return RunSummary(
        run_id=RunId(wire.run_id),
        format=wire.format,
        readable=wire.readable,
        finished=wire.finished,
        epoch=wire.epoch,
        commit_number=wire.commit_number,
        policy_version=wire.policy_version,
        payload_bytes=wire.payload_bytes,
        open_tasks=wire.open_tasks,
        create_time=time_from_proto(wire.create_time),
        trainer_idle_seconds=wire.trainer_idle_seconds,
        idle_seconds=wire.idle_seconds,
    )
