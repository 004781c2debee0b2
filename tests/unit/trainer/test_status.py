from services.common.types import RunId
from services.trainer.status import TrainerState, TrainerStatus


def test_a_report_is_a_copy_that_later_changes_do_not_reach():
    status = TrainerStatus(run_id=RunId("demo"), total_steps=20)
    report = status.report()
    status.step, status.state = 3, TrainerState.TRAINING
    status.metrics["loss"] = 1.0

    assert (report.step, report.state, report.metrics, report.policy_version) == (0, "starting", {}, -1)
    assert status.report().state == "training"
