"""Every check can fail: a clean run's evidence is doctored in one place, and exactly that is found."""

import copy
from dataclasses import replace

import pytest

from tests.chaos.checks import Broken, check, committed_lineage
from tests.chaos.evidence import Evidence, Use, Weights

_STEPS = 4
_GROUPS = 2
_EPOCH = 100


def _result(sequence, attempt=0):
    task = f"{sequence:08d}"
    return {
        "task_id": task, "attempt": attempt, "outcome": "consumed", "drop_reason": None, "sequence": sequence,
    }  # fmt: skip


def _checkpoint(number, *, epoch=_EPOCH, version=None):
    first = (number - 1) * _GROUPS
    return {
        "step": number,
        "commit_number": number,
        "epoch": epoch,
        "policy_version": number if version is None else version,
        "num_consumed": number * _GROUPS,
        "results": [_result(first + index) for index in range(_GROUPS)],
    }


def _metrics(step, *, version=None, epoch=_EPOCH):
    version = step - 1 if version is None else version
    return {"step": step, "epoch": epoch, "version": version, "num_groups": _GROUPS, "staleness_max": 1}


def _use(sequence, *, step, version, staleness=1, attempt=0):
    return Use(
        trajectory=f"train/{sequence:08d}/{attempt}/0",
        step=step,
        version=version,
        staleness=staleness,
        time=10.0 * step,
    )


def _partition(consumed):
    return {
        "lost": 0,
        "trained_twice": 0,
        "tasks": {
            "fed": consumed + 1, "refilled": 1, "consumed": consumed, "filtered": 0, "dropped": {"stale": 1},
            "dead_lettered": 0, "open": 0, "lost": 0,
        },
        "trajectories": {
            "issued": consumed * 4 + 3, "put": consumed * 4, "duplicate": 1, "lapsed": 1,
            "failed": {"reward_error": 1}, "released": {}, "in_flight": 0, "lost": 0,
        },
    }  # fmt: skip


@pytest.fixture
def clean():
    """Evidence of a run of four steps of two groups without any fault."""
    return Evidence(
        settings={
            "trainer.total_steps": _STEPS,
            "trainer.groups_per_step": _GROUPS,
            "async.max_staleness": 2,
            "async.on_stale": "refill",
        },
        exit_code=0,
        metrics=[_metrics(step) for step in range(1, _STEPS + 1)],
        ledger={"lost": 0, "trained_twice": 0, "train": _partition(8), "validation": _partition(2)},
        num_looks=20,
        summary={"state": "finished"},
        checkpoints=[_checkpoint(number) for number in range(1, _STEPS + 1)],
        uses=[
            _use(sequence, step=1 + sequence // _GROUPS, version=sequence // _GROUPS)
            for sequence in range(_STEPS * _GROUPS)
        ],
        sampled_by={f"train/{sequence:08d}/0/0": {sequence // _GROUPS - 1} for sequence in range(_STEPS * _GROUPS)},
        published=[(10.0 * version + 5.0, version) for version in range(_STEPS)],
        weights=Weights(num_tensors=3),
    )


def _found(evidence):
    return {violation.broken for violation in check(evidence)}


def test_a_clean_run_is_found_clean(clean):
    assert check(clean) == []


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"exit_code": None}, Broken.END),
        ({"exit_code": 1}, Broken.END),
        ({"summary": None}, Broken.END),
        ({"left_behind": ["python -m services.queue"]}, Broken.PROCESSES),
        ({"rival_exit_codes": [None]}, Broken.PROCESSES),
        ({"rival_exit_codes": [0]}, Broken.PROCESSES),
        ({"weights": Weights(problem="no such folder")}, Broken.WEIGHTS),
        ({"weights": Weights()}, Broken.WEIGHTS),
        ({"weights": Weights(num_tensors=3, not_finite=("norm",))}, Broken.WEIGHTS),
        ({"weights": Weights(num_tensors=3, not_committed=("norm",))}, Broken.WEIGHTS),
        ({"ledger": None}, Broken.LEDGER),
        ({"checkpoints": []}, Broken.EVIDENCE),
        ({"num_looks": 0}, Broken.EVIDENCE),
        ({"unbalanced": ["tasks: lost 1"]}, Broken.LOST),
    ],
)
def test_a_bad_end_is_found(clean, changes, broken):
    assert broken in _found(replace(clean, **changes))


@pytest.mark.parametrize("partition", ["train", "validation"])
@pytest.mark.parametrize(
    ("table", "column", "by", "broken"),
    [
        ("tasks", "fed", 1, Broken.LOST),
        ("tasks", "consumed", -1, Broken.LOST),
        ("tasks", "dead_lettered", 1, Broken.LOST),
        ("trajectories", "issued", -1, Broken.LOST),
        ("trajectories", "lapsed", 1, Broken.LOST),
    ],
)
def test_a_table_that_does_not_balance_is_found_whatever_the_ledger_says(clean, partition, table, column, by, broken):
    ledger = copy.deepcopy(clean.ledger)
    ledger[partition][table][column] += by
    assert broken in _found(replace(clean, ledger=ledger))


def test_what_is_still_open_at_the_end_is_found_though_the_table_balances(clean):
    ledger = copy.deepcopy(clean.ledger)
    ledger["train"]["tasks"]["open"] = 1
    ledger["train"]["tasks"]["fed"] += 1
    assert _found(replace(clean, ledger=ledger)) == {Broken.LEDGER}


def test_a_column_below_zero_is_found_though_the_table_balances(clean):
    ledger = copy.deepcopy(clean.ledger)
    ledger["train"]["trajectories"] |= {"lapsed": -1, "duplicate": 3}
    assert _found(replace(clean, ledger=ledger)) == {Broken.LEDGER}


@pytest.mark.parametrize(("column", "broken"), [("lost", Broken.LOST), ("trained_twice", Broken.TWICE)])
def test_the_ledgers_own_verdict_is_heard(clean, column, broken):
    assert broken in _found(replace(clean, ledger={**clean.ledger, column: 2}))


def test_a_ledger_that_counts_other_groups_than_the_checkpoints_is_found(clean):
    ledger = copy.deepcopy(clean.ledger)
    ledger["train"]["tasks"] |= {"consumed": 9, "fed": 10}
    assert _found(replace(clean, ledger=ledger)) == {Broken.LEDGER}


def test_a_task_in_two_commits_is_found(clean):
    checkpoints = copy.deepcopy(clean.checkpoints)
    checkpoints[3]["results"][0] = _result(0, attempt=1)
    assert Broken.TWICE in _found(replace(clean, checkpoints=checkpoints))


def test_a_task_in_two_steps_that_count_is_found(clean):
    extra = _use(0, step=4, version=3)
    assert _found(replace(clean, uses=[*clean.uses, extra], sampled_by={})) == {Broken.TWICE}


def test_a_task_in_a_step_that_a_crash_undid_is_no_violation(clean):
    undone = _use(6, step=3, version=2)
    metrics = [*clean.metrics[:3], _metrics(3, version=5, epoch=_EPOCH + 1), _metrics(4, version=6, epoch=_EPOCH + 1)]
    kept = [use for use in clean.uses if use.step < 3]
    assert check(replace(clean, metrics=metrics, uses=[*kept, undone], sampled_by={})) == []


def test_a_step_on_a_task_that_no_commit_names_is_found(clean):
    assert _found(replace(clean, uses=[*clean.uses, _use(99, step=4, version=3)])) == {Broken.LEDGER}


def test_a_task_that_nobody_trained_on_and_nobody_gave_up_is_found(clean):
    checkpoints = copy.deepcopy(clean.checkpoints)
    checkpoints[3]["results"] = [_result(sequence) for sequence in (6, 8)]
    evidence = replace(clean, checkpoints=checkpoints, uses=[], sampled_by={})
    assert _found(evidence) == {Broken.LOST}
    ledger = copy.deepcopy(clean.ledger)
    ledger["train"]["tasks"] |= {"dead_lettered": 1, "fed": 10}
    assert check(replace(evidence, ledger=ledger)) == []


def test_a_stale_attempt_that_is_tried_again_does_not_explain_a_lost_task(clean):
    checkpoints = copy.deepcopy(clean.checkpoints)
    checkpoints[3]["results"] = [_result(sequence) for sequence in (6, 8)]
    evidence = replace(clean, checkpoints=checkpoints, uses=[], sampled_by={})
    dropping = replace(evidence, settings={**clean.settings, "async.on_stale": "drop"})
    assert _found(evidence) == {Broken.LOST}
    assert check(dropping) == []


def test_what_redis_forgot_is_explained_by_what_was_seen_before_and_not_by_one_number(clean):
    checkpoints = copy.deepcopy(clean.checkpoints)
    checkpoints[3]["results"] = [_result(sequence) for sequence in (6, 8)]
    ledger = copy.deepcopy(clean.ledger)
    ledger["train"]["tasks"]["dropped"] = {"reconciled": 1}
    evidence = replace(clean, checkpoints=checkpoints, ledger=ledger, uses=[], sampled_by={})
    assert _found(evidence) == {Broken.LOST}
    assert check(replace(evidence, given_up={"dead_lettered": 1})) == []


def test_an_old_token_in_any_step_is_found_even_if_a_crash_undid_it(clean):
    undone = {**_metrics(2), "staleness_max": 3}
    assert _found(replace(clean, metrics=[*clean.metrics[:1], undone, *clean.metrics[1:]])) == {Broken.BOUND}


def test_an_age_that_the_spans_contradict_is_found(clean):
    sampled_by = {**clean.sampled_by, "train/00000006/0/0": {0}}
    assert _found(replace(clean, sampled_by=sampled_by)) == {Broken.BOUND}


def test_an_old_token_is_found_though_the_trainer_says_nothing(clean):
    uses = [*clean.uses[:-1], replace(clean.uses[-1], staleness=3)]
    assert _found(replace(clean, uses=uses)) == {Broken.BOUND}


def test_ages_that_count_from_an_older_version_than_the_newest_are_found(clean):
    assert _found(replace(clean, published=[*clean.published, (5.0, 3)])) == {Broken.BOUND}


def test_a_missing_step_is_found(clean):
    assert _found(replace(clean, metrics=[entry for entry in clean.metrics if entry["step"] != 2])) == {Broken.STEPS}


def test_a_step_with_too_few_groups_is_found(clean):
    metrics = [*clean.metrics[:3], {**clean.metrics[3], "num_groups": 1}]
    assert _found(replace(clean, metrics=metrics)) == {Broken.STEPS}


def test_a_lineage_whose_versions_go_back_is_found(clean):
    metrics = [clean.metrics[0], {**clean.metrics[1], "version": 9}, *clean.metrics[2:]]
    assert Broken.STEPS in _found(replace(clean, metrics=metrics, uses=[]))


def test_the_lineage_leaves_out_what_a_replaced_trainer_wrote_late():
    late = {**_checkpoint(3, version=9), "results": [_result(90), _result(91)]}
    newer = [_checkpoint(3, epoch=_EPOCH + 1, version=7), _checkpoint(4, epoch=_EPOCH + 1, version=8)]
    lineage = committed_lineage([_checkpoint(1), _checkpoint(2), newer[0], late, newer[1]])
    assert lineage.sequences == list(range(8))


def test_a_commit_without_a_checkpoint_is_named():
    assert committed_lineage([_checkpoint(1), _checkpoint(3), _checkpoint(4)]).missing == (2,)
