"""Who is silent, what is full, and who waits for whom: the same words everywhere."""

from dataclasses import replace

import pytest

from services.common.standing import (
    describe_full,
    describe_idleness,
    describe_rollouters,
    describe_trainer,
    newest_trainer,
    silent_seconds,
    state_of,
)
from services.common.types import WhenFull
from tests.factories import make_report, make_settings, make_stats


def test_a_replica_is_silent_after_a_lease_and_three_heartbeats():
    assert silent_seconds(make_stats()) == 10.0
    stats = make_stats(settings=make_settings(lease_seconds=0.5))
    assert silent_seconds(stats) == 6.0
    assert state_of(make_report("r-1", age_seconds=5.9), stats) == "serving"
    assert state_of(make_report("r-1", age_seconds=6.0), stats) == "silent"
    assert state_of(make_report("r-1", age_seconds=60.0, state="left"), stats) == "left"


def test_a_producer_that_died_one_that_left_and_one_that_works_are_told_apart():
    dead, gone = make_report("r-dead", age_seconds=42.0), make_report("r-gone", age_seconds=42.0, state="left")
    said = describe_rollouters(make_stats(dead, gone, make_report("r-well")))
    assert "r-dead is silent for 42 s: it died or hangs (serving before)" in said
    assert "r-gone left 42 s ago, told to stop" in said
    assert "r-well serving at version 3, 2/8 slots busy, heard 1 s ago" in said
    assert describe_rollouters(make_stats()) == "none is heard of, start one"


def test_a_full_queue_says_which_bound_is_reached():
    assert describe_full(make_stats(ready_groups=7)) == ""
    assert describe_full(make_stats(ready_groups=8)) == "queue full: 8 of 8 groups (queue.max_queue_size)"
    full = make_stats(ready_groups=2, queued_bytes=3 * 2**19)
    assert describe_full(full) == "queue full: 1.5 of 1.0 MiB (queue.max_queue_bytes)"


def test_a_trainer_that_stopped_consuming_is_named():
    silent = make_report("trainer-box-7", age_seconds=41.0)
    stats = make_stats(silent, ready_groups=8, ask_age_seconds=42.0)
    assert describe_trainer(stats) == (
        "trainer-box-7 has not consumed for 42 s (state training, last heartbeat 41 s ago); 8 groups ready, "
        "queue full: 8 of 8 groups (queue.max_queue_size); see logs/trainer.log"
    )


@pytest.mark.parametrize(
    ("age", "asked", "is_named"), [(41.0, 9.0, False), (41.0, 10.0, True), (1.0, 29.0, False), (1.0, 30.0, True)]
)
def test_a_silent_trainer_is_named_after_a_lease_and_a_living_one_after_three(age, asked, is_named):
    stats = make_stats(make_report("trainer-1", age_seconds=age), ready_groups=1, ask_age_seconds=asked)
    assert bool(describe_trainer(stats)) is is_named


def test_a_trainer_that_nothing_waits_for_is_not_blamed():
    silent = make_report("trainer-1", age_seconds=90.0)
    assert describe_trainer(make_stats(silent, ask_age_seconds=90.0)) == ""
    stats = make_stats(silent, ready_groups=3, ask_age_seconds=90.0)
    assert describe_trainer(stats)
    assert describe_trainer(replace(stats, run_finished=True)) == ""


def test_a_trainer_that_never_asked_is_judged_by_its_heartbeats():
    assert describe_trainer(make_stats(make_report("trainer-1", age_seconds=15.0), ready_groups=1))
    assert not describe_trainer(make_stats(make_report("trainer-1"), ready_groups=1))


def test_the_newest_trainer_counts():
    stats = make_stats(make_report("trainer-old", age_seconds=50.0), make_report("trainer-new"))
    assert newest_trainer(stats).status.replica_id == "trainer-new"


def test_an_idle_rollouter_says_what_it_waits_for():
    trainer = make_report("trainer-1")

    def why(**train):
        return describe_idleness(make_stats(trainer, **train), policy_version=3)

    assert why(data_ended=True, in_flight_members=2) == "the data has ended, and 2 members are in flight elsewhere"
    assert why(ready_groups=4).startswith("no task waits: the trainer feeds more when it has trained on what is ready")
    assert why(ready_groups=8, ask_age_seconds=1.0).startswith("queue full: 8 of 8 groups")
    assert "state training, last heartbeat 1 s ago" in why(ready_groups=8, ask_age_seconds=1.0)
    assert "members wait for a version" in why(pending_members=4)
    assert why(ready_groups=8, ask_age_seconds=31.0).startswith("trainer-1 has not consumed for 31 s")
    stats = make_stats(trainer, pending_members=4)
    assert describe_idleness(stats, policy_version=1) == "version 3 is newest and 1 is served here"
    assert describe_idleness(replace(stats, run_finished=True), policy_version=3) == "the run has finished"
    drops = make_stats(trainer, ready_groups=8, settings=make_settings(when_full=WhenFull.DROP_OLDEST))
    assert "no task waits" in describe_idleness(drops, policy_version=3)
