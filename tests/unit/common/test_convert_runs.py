"""Lists of runs and dead letters lose nothing on the wire."""

from __future__ import annotations

from headrace.v1 import queue_service_pb2

from services.common.convert.runs import letters_from_proto, letters_to_proto, summary_from_proto, summary_to_proto
from services.common.types import DeadLetter, Partition, RunId, RunSummary, TaskId


def test_dead_letters_survive_the_wire():
    letter = DeadLetter(
        partition=Partition.VALIDATION,
        task_id=TaskId("00000007"),
        attempt=2,
        sequence=7,
        time=1700000000.25,
        reasons=("engine_error", "lapsed"),
    )
    wire = queue_service_pb2.GetDeadLettersResponse.FromString(letters_to_proto([letter]).SerializeToString())
    assert letters_from_proto(wire) == (letter,)


def test_a_line_of_a_list_of_runs_survives_the_wire():
    summary = RunSummary(
        run_id=RunId("demo"),
        format="1",
        readable=True,
        finished=True,
        epoch=9,
        commit_number=4,
        policy_version=-1,
        payload_bytes=2**40,
        open_tasks=3,
        create_time=1700000000.5,
        trainer_idle_seconds=2.5,
        idle_seconds=1.5,
    )
    wire = queue_service_pb2.RunSummary.FromString(summary_to_proto(summary).SerializeToString())
    assert summary_from_proto(wire) == summary
