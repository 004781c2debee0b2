"""What a trainer says of itself."""

from __future__ import annotations

from headrace.v1 import trainer_service_pb2

from services.common.types import RunId, TrainerReport


def trainer_report_to_proto(report: TrainerReport) -> trainer_service_pb2.TrainerServiceGetStatusResponse:
    """Return the wire form of a report."""
    return trainer_service_pb2.TrainerServiceGetStatusResponse(
        run_id=report.run_id,
        epoch=report.epoch,
        step=report.step,
        total_steps=report.total_steps,
        policy_version=report.policy_version,
        state=report.state,
        metrics=report.metrics,
    )


def trainer_report_from_proto(wire: trainer_service_pb2.TrainerServiceGetStatusResponse) -> TrainerReport:
    """Return a report."""
    return TrainerReport(
        run_id=RunId(wire.run_id),
        epoch=wire.epoch,
        step=wire.step,
        total_steps=wire.total_steps,
        policy_version=wire.policy_version,
        state=wire.state,
        metrics=dict(wire.metrics),
    )
