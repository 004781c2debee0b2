"""The same seed makes the same plan, and a few runs meet everything."""

from tests.chaos.plan import Action, Moment, make_plan


def test_the_same_seed_makes_the_same_plan():
    assert make_plan(7, kills=25) == make_plan(7, kills=25)
    assert make_plan(7, kills=25).as_records() == make_plan(7, kills=25).as_records()


def test_another_seed_makes_another_plan():
    assert make_plan(7, kills=25).events != make_plan(8, kills=25).events


def test_a_plan_has_at_least_the_blows_that_were_asked_for():
    for seed in range(20):
        assert sum(event.hits for event in make_plan(seed, kills=25).events) >= 25


def test_every_rollback_follows_a_snapshot():
    for seed in range(40):
        actions = [event.action for event in make_plan(seed, kills=25).events]
        if Action.ROLLBACK in actions:
            assert Action.SNAPSHOT in actions[: actions.index(Action.ROLLBACK)]


def test_eight_runs_meet_every_action_moment_and_setting():
    plans = [make_plan(seed, kills=25) for seed in range(1, 9)]
    events = [event for plan in plans for event in plan.events]
    assert {event.action for event in events} == set(Action)
    assert {event.moment for event in events} == {*Moment, None}
    assert {plan.settings["async.max_staleness"] for plan in plans} == {0, 1, 2}
    assert {plan.settings["async.updates_per_version"] for plan in plans} == {1, 2}
    assert {plan.settings["async.partial_rollout"] for plan in plans} == {True, False}
    assert {plan.settings["async.on_stale"] for plan in plans} == {"refill", "drop", "wait"}
    assert len({plan.settings["trainer.checkpoint_every"] for plan in plans}) > 1
    hurt = {target for event in events if event.action is Action.KILL for target in event.targets}
    assert {"redis", "queue", "reward", "scorer", "trainer", "rollouter-0", "rollouter-1"} <= hurt


def test_the_plan_names_the_command_that_replays_it():
    assert make_plan(7, kills=25).replay == "make chaos SEED=7 KILLS=25 RUNS=1"
