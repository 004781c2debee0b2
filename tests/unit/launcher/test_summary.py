"""The closing report, from the files that a trainer leaves."""

import json

import pytest

from services.common.errors import NotFoundError
from services.launcher.summary import read_summary

_FIGURES = {
    "steps": 10,
    "total_steps": 10,
    "pass_rate_before": 0.25,
    "pass_rate_after": 0.9,
    "reward_first": 0.2,
    "reward_last": 0.8,
    "seconds": 150.0,
    "tokens_per_second": 5123.0,
    "trajectories": 12800,
    "versions": 11,
    "staleness_mean": 0.81,
    "staleness_max": 2,
    "max_staleness": 2,
    "wait_share": 0.7,
}


def _account(lost=0):
    tasks = {"fed": 43, "consumed": 40, "filtered": 0, "dropped": {"stale": 3}, "dead_lettered": 0, "open": 0}
    members = {
        "issued": 172,
        "put": 170,
        "duplicate": 0,
        "lapsed": 1,
        "failed": {"engine_error": 1},
        "released": {},
        "in_flight": 0,
    }
    return {"tasks": {**tasks, "lost": lost}, "trajectories": {**members, "lost": 0}}


def _write(folder, *, lost=0, twice=0, **figures):
    (folder / "summary.json").write_text(json.dumps({**_FIGURES, **figures}))
    ledger = {"lost": lost, "trained_twice": twice, "train": _account(lost)}
    (folder / "ledger.json").write_text(json.dumps(ledger))


def test_a_finished_run_is_told_in_full(tmp_path):
    _write(tmp_path)
    (tmp_path / "final").mkdir()
    summary = read_summary(tmp_path)
    assert summary.balanced
    text = summary.text(rollouter_wait_share=0.1)
    for part in (
        "held-out pass rate   25.0% -> 90.0%",
        "2.5 minutes",
        "5,123 tokens/s, 12,800 trajectories",
        "11 published",
        "0.81 on average, 2 at most (bound 2)",
        "43 fed = 40 consumed + 0 filtered + 3 dropped (stale 3)",
        "172 issued = 170 put + 0 duplicate + 1 lapsed + 1 failed (engine_error 1)",
        "lost = 0\ntrained twice = 0",
        "raise rollout.replicas",
        str(tmp_path / "final"),
    ):
        assert part in text


def test_without_validation_the_reward_is_told(tmp_path):
    _write(tmp_path, pass_rate_before=None, pass_rate_after=None, seconds=30.0)
    text = read_summary(tmp_path).text()
    assert "mean reward          0.200 -> 0.800" in text
    assert "30 seconds" in text
    assert "load the model" not in text


@pytest.mark.parametrize("wrong", [{"lost": 2}, {"twice": 1}])
def test_an_account_that_does_not_balance_is_a_defect(tmp_path, wrong):
    _write(tmp_path, **wrong)
    summary = read_summary(tmp_path)
    assert not summary.balanced
    assert "does not balance" in summary.text()


def test_a_run_that_has_not_finished_has_no_report(tmp_path):
    assert read_summary(tmp_path) is None
    _write(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert read_summary(tmp_path) is None


@pytest.mark.parametrize("name", ["summary.json", "ledger.json"])
def test_half_a_result_is_an_error(tmp_path, name):
    _write(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(NotFoundError, match="cannot be read"):
        read_summary(tmp_path)


def test_the_newest_dead_letters_are_told_with_their_reasons(tmp_path):
    _write(tmp_path)
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    ledger["train"]["tasks"]["dead_lettered"] = 1
    letter = {"partition": "train", "task_id": "00000003", "attempt": 0, "sequence": 3, "time": 1.0}
    ledger["dead_letters"] = [{**letter, "reasons": ["prompt_too_long", "prompt_too_long"]}]
    (tmp_path / "ledger.json").write_text(json.dumps(ledger))
    text = read_summary(tmp_path).text()
    assert "  1 task was dead-lettered; the newest:\n    train task 00000003 (attempt 0): prompt_too_long x 2" in text
