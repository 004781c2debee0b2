"""The report at the end of a run, from what the trainer wrote into the run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.common.errors import NotFoundError
from services.launcher.bottleneck import advise
from services.launcher.letters import letter_from_values, letter_lines
from services.launcher.run_directory import newest_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from services.launcher.bottleneck import Cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a finished run went."""

    run_directory: Path
    """The run's folder."""
    figures: Mapping[str, Any]
    """What `summary.json` holds."""
    ledger: Mapping[str, Any]
    """What `ledger.json` holds."""

    @property
    def balanced(self) -> bool:
        """Whether every task and trajectory is accounted for and none was trained twice."""
        return not self.imbalance

    @property
    def imbalance(self) -> str:
        """What the account does not add up to, in one sentence; empty when it does."""
        return imbalance(self.ledger.get("lost"), self.ledger.get("trained_twice"))

    def text(self, *, rollouter_wait_share: float | None = None, cores: Cores | None = None) -> str:
        """Word the report.

        Args:
            rollouter_wait_share: share of its time that the average rollouter waited; None when unknown.
            cores: who computed on this machine; None when unknown.
        """
        lines = ["", "Result", *self._learnt(), "", "Ledger", *self.ledger_lines()]
        wait_share = self.figures.get("wait_share")
        advice = advise(trainer_wait_share=wait_share, rollouter_wait_share=rollouter_wait_share, cores=cores)
        lines += ["", advice, ""]
        lines += self._where()
        return "\n".join(lines) + "\n"

    def ledger_lines(self) -> list[str]:
        """Both tables and the two numbers that must be 0."""
        return [*self._accounts(), "", *self._balance()]

    def _learnt(self) -> list[str]:
        """Pass rate, speed and age."""
        figures = self.figures
        before, after = figures.get("pass_rate_before"), figures.get("pass_rate_after")
        if before is not None and after is not None:
            learnt = f"  held-out pass rate   {before:.1%} -> {after:.1%}"
        else:
            first, last = _number(figures.get("reward_first")), _number(figures.get("reward_last"))
            learnt = f"  mean reward          {first} -> {last}"
        return [
            learnt,
            f"  steps                {figures.get('steps')} of {figures.get('total_steps')}",
            f"  time                 {_duration(figures.get('seconds', 0.0))}",
            f"  speed                {figures.get('tokens_per_second', 0.0):,.0f} tokens/s, "
            f"{figures.get('trajectories', 0):,} trajectories",
            f"  policy versions      {figures.get('versions')} published",
            f"  staleness            {figures.get('staleness_mean', 0.0):.2f} on average, "
            f"{figures.get('staleness_max')} at most (bound {figures.get('max_staleness')})",
        ]

    def _accounts(self) -> list[str]:
        """Both tables of every partition, and what was given up."""
        lines = []
        for partition, account in self.ledger.items():
            if not isinstance(account, dict):
                continue
            tasks, members = account["tasks"], account["trajectories"]
            lines += [
                f"  {partition} tasks: {tasks['fed']} fed = {tasks['consumed']} consumed + {tasks['filtered']} filtered"
                f" + {_total(tasks['dropped'])} dropped{_named(tasks['dropped'])}"
                f" + {tasks['dead_lettered']} dead-lettered + {tasks['open']} open + {tasks['lost']} lost",
                f"  {partition} trajectories: {members['issued']} issued = {members['put']} put"
                f" + {members['duplicate']} duplicate + {members['lapsed']} lapsed"
                f" + {_total(members['failed'])} failed{_named(members['failed'])}"
                f" + {_total(members['released'])} released{_named(members['released'])}"
                f" + {members['in_flight']} in flight + {members['lost']} lost",
            ]
        letters = [letter_from_values(values) for values in self.ledger.get("dead_letters", ())]
        return lines + [f"  {line}" for line in letter_lines(self._num_dead_letters, letters)]

    @property
    def _num_dead_letters(self) -> int:
        """Tasks that were given up, of all partitions."""
        accounts = (account for account in self.ledger.values() if isinstance(account, dict))
        return sum(account["tasks"]["dead_lettered"] for account in accounts)

    def _balance(self) -> list[str]:
        """The two numbers that must be 0."""
        lines = [f"lost = {self.ledger.get('lost')}", f"trained twice = {self.ledger.get('trained_twice')}"]
        return lines if self.balanced else [*lines, f"{self.imbalance[0].upper()}{self.imbalance[1:]}."]

    def _where(self) -> list[str]:
        """Where things are."""
        final = self.run_directory / "final"
        lines = [f"run directory: {self.run_directory}"]
        if final.is_dir():
            lines.append(f'load the model: AutoModelForCausalLM.from_pretrained("{final}")')
        return lines


def imbalance(lost: int | None, trained_twice: int | None) -> str:
    """Say that an account does not add up; empty when it does.

    Args:
        lost: tasks and trajectories that no column accounts for; None when the account does not say.
        trained_twice: trajectories in two committed batches; None when the account does not say.
    """
    if lost == 0 and trained_twice == 0:
        return ""
    return (
        f"the ledger does not balance (lost {lost}, trained twice {trained_twice}); this is a defect, please report it"
    )


def last_words(run_directory: Path) -> str:
    """What a run that has not finished left: its newest step, and the account if there is one; empty when nothing."""
    lines = []
    step = newest_metrics(run_directory)
    if step:
        lines.append(
            f"step {step.get('step')}, version {step.get('version')}: reward {_number(step.get('reward_mean'))}, "
            f"pass@1 {100 * step.get('pass_rate', 0.0):.1f} %, staleness {step.get('staleness_mean', 0.0):.1f} "
            f"(max {step.get('staleness_max')}), {step.get('tokens_per_second', 0.0):,.0f} tokens/s"
        )
    try:
        ledger = json.loads((run_directory / "ledger.json").read_text(encoding="utf-8"))
        summary = Summary(run_directory=run_directory, figures={}, ledger=ledger)
        lines += ["", "Ledger", *summary.ledger_lines()]
    except (OSError, ValueError):
        lines += ["no ledger.json: the queue keeps the account, and a resumed run goes on with it"]
    return "\n".join(lines) + "\n"


def read_summary(run_directory: Path) -> Summary | None:
    """Read what a finished run left; None when the run has not finished, though a failed one leaves its ledger.

    Raises:
        NotFoundError: one of the two files cannot be read.
    """
    files = run_directory / "summary.json", run_directory / "ledger.json"
    if not files[0].exists():
        return None
    try:
        figures, ledger = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{run_directory}: the results cannot be read ({error})") from None
    return Summary(run_directory=run_directory, figures=figures, ledger=ledger)


def _total(named: Mapping[str, int]) -> int:
    """Sum over all reasons."""
    return sum(named.values())


def _named(named: Mapping[str, int]) -> str:
    """The reasons that occurred, in brackets."""
    found = ", ".join(f"{name} {count}" for name, count in named.items() if count)
    return f" ({found})" if found else ""


def _number(value: float | None) -> str:
    """A number, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def _duration(seconds: float) -> str:
    """A time in the unit that reads best."""
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.1f} minutes"
