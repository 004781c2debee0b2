"""The view shows what a person wants to know."""

from dataclasses import replace

from rich.console import Console

from services.common.types import DeadLetter, Partition, TaskId
from services.launcher.view import draw
from tests.unit.launcher.moments import moment, replica


def _text(snapshot):
    console = Console(width=160)
    with console.capture() as captured:
        console.print(draw(snapshot, title="demo-1"))
    return captured.get()


def test_figures_replicas_and_accounts_are_drawn():
    trainer = {"step": 12.0, "total_steps": 60.0, "pass_rate": 0.5, "reward_mean": 0.4, "wait_share": 0.7}
    snapshot = moment(
        replica("trainer-1", service="trainer", staleness_mean=0.8, staleness_max=2.0, **trainer),
        replica("rollouter-0", tokens_per_second=1234.0, wait_share=0.1),
    )
    text = _text(snapshot)
    for part in ("demo-1", "12 of 60", "50.0%", "0.80 (max 2)", "1,234", "rollouter-0", "3/8", "stale 2"):
        assert part in text
    assert "engine_error 1" in text
    assert "rollouters are the bottleneck" in text
    assert text.index("trainer-1") < text.index("rollouter-0")


def test_a_batch_that_is_held_for_slow_tasks_is_told():
    snapshot = moment()
    train, *others = snapshot.stats.partitions
    held = replace(snapshot.stats, partitions=(replace(train, held_for_groups=2), *others))
    assert "waits for" not in _text(snapshot)
    assert "3, the batch waits for 2 unfinished" in _text(replace(snapshot, stats=held))


def test_a_run_that_only_begins_is_drawn_with_dashes():
    text = _text(moment())
    assert "pass rate       -" in text
    assert "Not enough was measured" in text


def test_what_was_given_up_is_told_with_its_reasons():
    snapshot = moment()
    (ledger,) = snapshot.ledgers
    tasks = replace(ledger.tasks, dead_lettered=2)
    letter = DeadLetter(
        partition=Partition.TRAIN, task_id=TaskId("00000007"), attempt=0, sequence=7, time=1.0, reasons=("lapsed",) * 2
    )
    text = _text(replace(snapshot, ledgers=(replace(ledger, tasks=tasks),), dead_letters=(letter,)))
    assert "2 tasks were dead-lettered; the newest:" in text
    assert "train task 00000007 (attempt 0): lapsed x 2" in text
