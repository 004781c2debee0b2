from services.common.convert.trainer import trainer_report_from_proto, trainer_report_to_proto
from services.common.types import RunId, TrainerReport


def test_a_report_comes_back_as_it_was():
    report = TrainerReport(
        run_id=RunId("demo"),
        epoch=3,
        step=7,
        total_steps=20,
        policy_version=-1,
        state="waiting",
        metrics={"loss": 0.5, "reward_mean": 0.25},
    )

    assert trainer_report_from_proto(trainer_report_to_proto(report)) == report
