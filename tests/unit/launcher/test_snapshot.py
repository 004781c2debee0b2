"""A snapshot reads what replicas said of themselves."""

import pytest

from tests.unit.launcher.moments import moment, replica


def test_the_trainer_and_the_rollouters_are_told_apart():
    snapshot = moment(replica("b"), replica("t", service="trainer", step=3.0), replica("a"))
    assert snapshot.trainer.status.replica_id == "t"
    assert [report.status.replica_id for report in snapshot.rollouters] == ["a", "b"]
    assert snapshot.trainer_metric("step") == 3.0
    assert snapshot.trainer_metric("nothing") is None


def test_rates_are_summed_and_waits_averaged_over_who_said_them():
    snapshot = moment(
        replica("a", tokens_per_second=100.0, wait_share=0.2),
        replica("b", tokens_per_second=50.0, wait_share=0.4),
        replica("c"),
    )
    assert snapshot.tokens_per_second == 150.0
    assert snapshot.rollouter_wait_share == pytest.approx(0.3)


def test_before_anybody_spoke_nothing_is_known():
    snapshot = moment()
    assert snapshot.trainer is None
    assert snapshot.trainer_wait_share is None
    assert snapshot.rollouter_wait_share is None
    assert snapshot.tokens_per_second == 0.0


def test_only_training_groups_count_as_ready():
    assert moment().ready_groups == 3
