"""One run under a plan, judged; and many of them, one after the other."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.chaos.checks import Broken, Violation, check
from tests.chaos.evidence import Evidence, load_weights, read_json, read_lines, read_traces
from tests.chaos.plan import SLOW_FROM_KILLS, make_plan
from tests.chaos.stack import Stack
from tests.chaos.storm import Storm
from tests.chaos.watches import CheckpointWatch, LedgerWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.plan import Plan

KILLS_PER_RUN = SLOW_FROM_KILLS
"""Blows of one run of a long campaign."""

_LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one run went."""

    plan: Plan
    """What was planned."""
    by_kind: Counter[str]
    """Blows by kind of event."""
    by_action: Counter[str]
    """Blows by what was done."""
    by_target: Counter[str]
    """Blows by target."""
    violations: list[Violation]
    """Broken promises."""
    max_staleness: int
    """Largest age seen in any step."""
    seconds: float
    """Duration."""
    events_file: Path
    """What was planned and what happened."""

    @property
    def kills(self) -> int:
        """Blows that met somebody."""
        return sum(self.by_action.values())

    def describe(self) -> str:
        """The violations, and how to see them again."""
        lines = [f"{violation.broken}: {violation.text}" for violation in self.violations]
        return "\n".join([*lines, f"events: {self.events_file}", f"replay: {self.plan.replay}"])


@dataclass(slots=True)
class Tally:
    """Sums over the runs of a campaign."""

    results: list[Result] = field(default_factory=list)
    """Every run so far."""

    @property
    def kills(self) -> int:
        """Blows so far."""
        return sum(result.kills for result in self.results)

    def summary(self, *, seconds: float) -> dict[str, Any]:
        """The campaign as one JSON object."""
        violations = [
            {"seed": result.plan.seed, "broken": violation.broken, "text": violation.text}
            for result in self.results
            for violation in result.violations
        ]
        return {
            "chaos": (not violations and "clean") or "violated",
            "runs": len(self.results),
            "seeds": [result.plan.seed for result in self.results],
            "kills": self.kills,
            "by_action": self._sum("by_action"),
            "by_kind": self._sum("by_kind"),
            "by_target": self._sum("by_target"),
            "lost": self._broken(Broken.LOST),
            "trained_twice": self._broken(Broken.TWICE),
            "bound_broken": self._broken(Broken.BOUND),
            "max_staleness": max((result.max_staleness for result in self.results), default=0),
            "violations": violations,
            "seconds": round(seconds),
        }

    def _sum(self, name: str) -> dict[str, int]:
        return dict(sorted(sum((getattr(result, name) for result in self.results), Counter()).items()))

    def _broken(self, broken: Broken) -> int:
        found = [violation for result in self.results for violation in result.violations]
        return sum(violation.count for violation in found if violation.broken is broken)


def run_plan(plan: Plan, folder: Path, *, seconds: float, say: Callable[[str], None]) -> Result:
    """Run the stack under a plan and judge what it left.

    Args:
        plan: what goes wrong.
        folder: gets the run directory and `seed-N.events.jsonl` beside it.
        seconds: bound of the run.
        say: told a line about each event.
    """
    began = time.monotonic()
    stack = Stack(folder, plan)
    stack.start()
    events_file = folder / f"{stack.name}.events.jsonl"
    storm = Storm(stack, plan, events_file=events_file, say=say)
    left_behind: list[str] = []
    ended = False
    try:
        with CheckpointWatch(stack.run_directory) as checkpoints, LedgerWatch(stack.run_directory) as ledger:
            ended = storm.run(seconds=seconds)
    finally:
        rivals = [rival.poll() for rival in storm.rivals]
        left_behind = stack.close()
    evidence = replace(
        _read_files(stack, plan),
        exit_code=stack.exit_code if ended else None,
        checkpoints=checkpoints.states,
        num_looks=ledger.num_looks,
        unbalanced=ledger.unbalanced,
        given_up=dict(ledger.given_up),
        left_behind=storm.left_behind + (left_behind if ended else []),
        rival_exit_codes=rivals,
    )
    return Result(
        plan=plan,
        by_kind=storm.by_kind,
        by_action=storm.by_action,
        by_target=storm.by_target,
        violations=check(evidence),
        max_staleness=max((entry["staleness_max"] for entry in evidence.metrics), default=0),
        seconds=time.monotonic() - began,
        events_file=events_file,
    )


def _read_files(stack: Stack, plan: Plan) -> Evidence:
    """Read what the run left."""
    folder = stack.run_directory
    uses, sampled_by, published = read_traces(folder / "traces.jsonl")
    return Evidence(
        settings=plan.settings,
        exit_code=None,
        last_words=" | ".join(stack.output.read_text(errors="replace").splitlines()[-_LAST_LINES:]),
        metrics=read_lines(folder / "metrics.jsonl"),
        ledger=read_json(folder / "ledger.json"),
        summary=read_json(folder / "summary.json"),
        uses=uses,
        sampled_by=sampled_by,
        published=published,
        weights=load_weights(folder),
    )


def run_campaign(
    *, seed: int, kills: int, runs: int, folder: Path, seconds: float, say: Callable[[str], None], keep: bool = False
) -> dict[str, Any]:
    """Do runs with growing seeds until there were enough blows; returns the summary.

    Args:
        seed: of the first run.
        kills: blows wanted in all.
        runs: most runs; 0 sets no bound.
        folder: where runs are written; those without violation are removed.
        seconds: bound of each run.
        say: told how it goes.
        keep: keeps the run directories of clean runs too.
    """
    began = time.monotonic()
    tally = Tally()
    while tally.kills < kills and (not runs or len(tally.results) < runs):
        plan = make_plan(seed + len(tally.results), kills=min(kills, KILLS_PER_RUN))
        result = run_plan(plan, folder, seconds=seconds, say=say)
        tally.results.append(result)
        verdict = "clean" if not result.violations else f"VIOLATED\n{result.describe()}"
        say(
            f"seed {plan.seed}: {result.kills} kills, {plan.settings['trainer.total_steps']} steps, "
            f"{result.seconds:.0f} s: {verdict}; {tally.kills} of {kills} kills done"
        )
        if not result.violations and not keep:
            shutil.rmtree(folder / "runs" / f"seed-{plan.seed}")
    return tally.summary(seconds=time.monotonic() - began)
