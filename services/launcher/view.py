"""Draws a snapshot for a terminal: what the run has learnt, how fast, how far behind, and who holds it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from services.common.standing import describe_full, describe_trainer, state_of, train_part
from services.launcher.bottleneck import advise
from services.launcher.letters import letter_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from services.common.types import Ledger, ReplicaReport
    from services.launcher.bottleneck import Cores
    from services.launcher.snapshot import Snapshot


def draw(snapshot: Snapshot, *, title: str, cores: Cores | None = None) -> RenderableType:
    """Draw one moment of a run.

    Args:
        snapshot: the moment.
        title: names the run.
        cores: who computes on this machine; None when unknown.
    """
    parts: list[RenderableType] = [Text(title, style="bold"), _figures(snapshot), _replicas(snapshot)]
    if snapshot.ledgers:
        parts += [ledger_table(snapshot.ledgers), Text(balance(snapshot.ledgers))]
    parts += [Text(line) for line in letter_lines(snapshot.num_dead_letters, snapshot.dead_letters)]
    stopped = describe_trainer(snapshot.stats)
    if stopped:
        return Group(*parts, Text(stopped, style="bold"))
    advice = advise(
        trainer_wait_share=snapshot.trainer_wait_share,
        rollouter_wait_share=snapshot.rollouter_wait_share,
        cores=cores,
    )
    return Group(*parts, Text(advice, style="italic"))


def _figures(snapshot: Snapshot) -> RenderableType:
    """The run's own figures, a line of name and value each."""
    table = Table.grid(padding=(0, 2))
    step, total = snapshot.trainer_metric("step"), snapshot.trainer_metric("total_steps")
    staleness = snapshot.trainer_metric("staleness_mean")
    largest = snapshot.trainer_metric("staleness_max")
    rows = {
        "step": _shown(step, "{:.0f}") + (f" of {total:.0f}" if total else ""),
        "pass rate": _shown(snapshot.trainer_metric("pass_rate"), "{:.1%}"),
        "reward": _shown(snapshot.trainer_metric("reward_mean"), "{:.3f}"),
        "tokens/s": f"{snapshot.tokens_per_second:,.0f}",
        "ready groups": _ready(snapshot),
        "policy version": str(snapshot.stats.policy_version),
        "staleness": _shown(staleness, "{:.2f}") + (f" (max {largest:.0f})" if largest is not None else ""),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _replicas(snapshot: Snapshot) -> RenderableType:
    """One line per replica."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("replica", "state", "version", "slots", "tokens/s", "waits", "heard"):
        table.add_column(column, justify="left" if column in {"replica", "state"} else "right")
    for report in _in_order(snapshot):
        status = report.status
        table.add_row(
            status.replica_id,
            state_of(report, snapshot.stats),
            str(status.policy_version),
            f"{status.busy_slots}/{status.max_slots}" if status.max_slots else "-",
            _shown(status.metrics.get("tokens_per_second"), "{:,.0f}"),
            _shown(status.metrics.get("wait_share"), "{:.0%}"),
            f"{report.age_seconds:.0f} s ago",
        )
    return table


def _in_order(snapshot: Snapshot) -> Iterable[ReplicaReport]:
    """The trainer first, then the rollouters."""
    return [*([snapshot.trainer] if snapshot.trainer else []), *snapshot.rollouters]


def ledger_table(ledgers: Iterable[Ledger]) -> Table:
    """Both tables of the account, one line per partition and table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("partition", "account", "begun", "ended well", "ended otherwise", "open", "lost"):
        table.add_column(column, justify="left" if column in {"partition", "account", "ended otherwise"} else "right")
    for ledger in ledgers:
        tasks, members = ledger.tasks, ledger.trajectories
        otherwise = {"filtered": tasks.filtered, **tasks.dropped, "dead-lettered": tasks.dead_lettered}
        table.add_row(
            ledger.partition,
            "tasks",
            str(tasks.fed),
            str(tasks.consumed),
            _counts(otherwise),
            str(tasks.open),
            str(tasks.lost),
        )
        otherwise = {"duplicate": members.duplicate, "lapsed": members.lapsed, **members.failed, **members.released}
        table.add_row(
            ledger.partition,
            "trajectories",
            str(members.issued),
            str(members.put),
            _counts(otherwise),
            str(members.in_flight),
            str(members.lost),
        )
    return table


def balance(ledgers: Iterable[Ledger]) -> str:
    """The two numbers that must be 0, over all partitions."""
    accounts = list(ledgers)
    lost, twice = (sum(getattr(ledger, name) for ledger in accounts) for name in ("lost", "trained_twice"))
    return f"lost = {lost}, trained twice = {twice}"


def _ready(snapshot: Snapshot) -> str:
    """How many groups wait for the trainer, and what that means for the rollouters."""
    full, train = describe_full(snapshot.stats), train_part(snapshot.stats)
    notes = [full] if full else []
    if train and train.data_ended:
        notes.append("the data has ended")
    held = f", the batch waits for {snapshot.held_for_groups} unfinished" if snapshot.held_for_groups else ""
    return f"{snapshot.ready_groups}{held}" + (f" ({'; '.join(notes)})" if notes else "")


def _counts(named: dict[str, int]) -> str:
    """Only what happened: `stale 3, lapsed 1`."""
    return ", ".join(f"{name} {count}" for name, count in named.items() if count) or "-"


def _shown(value: float | None, form: str) -> str:
    """A number by its format, or a dash."""
    return "-" if value is None else form.format(value)
