"""Tells people and programs how a run goes: a line per step, `metrics.jsonl`, `samples.jsonl`, the closing summary.

Steps that a crash undid are reported again when they are done again; each line carries the trainer's epoch, and readers
take the last line of a step.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from services.common.errors import FencedError, HeadraceError
from services.trainer.figures import mean, staleness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.common.config import RunConfig
    from services.common.types import DeadLetter, Ledger
    from services.trainer.backend.port import StepMetrics
    from services.trainer.collecting import Batch
    from services.trainer.figures import BatchFigures
    from services.trainer.queue_link import QueueLink
    from services.trainer.run_directory import RunDirectory
    from services.trainer.status import TrainerStatus
    from services.trainer.tasks import TaskSource
    from services.trainer.validation import Measurement

SAMPLES_PER_STEP = 2
"""Trajectories per step that go into `samples.jsonl`: the first of as many groups."""
MAX_DEAD_LETTERS = 100
"""Tasks that were given up which go into `ledger.json`: the newest ones, with the reason of each member."""
LAST_WORDS_SECONDS = 5.0
"""Time that a failed trainer gives the queue to tell the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where the time of one step went, seconds."""

    wait_seconds: float
    """Waiting for groups."""
    train_seconds: float
    """Advantages, forward, backward, optimiser."""
    publish_seconds: float
    """Assigning and copying the new version; describing and serving it runs beside the next step."""
    checkpoint_seconds: float
    """Writing a checkpoint and committing, between the step before and this one."""

    @property
    def total_seconds(self) -> float:
        """All of it."""
        return self.wait_seconds + self.train_seconds + self.publish_seconds + self.checkpoint_seconds


class Reporter:
    """Writes what a run says of itself."""

    def __init__(
        self,
        run_directory: RunDirectory,
        status: TrainerStatus,
        *,
        source: TaskSource,
        config: RunConfig,
        announce: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            run_directory: where files go.
            status: told the newest figures.
            source: knows the prompts.
            config: the run's configuration.
            announce: shows a line to people.
        """
        self._run_directory = run_directory
        self._status = status
        self._source = source
        self._config = config
        self._announce = announce
        self._has_run = False
        self.validated_step: int | None = None
        """Step of the newest measurement; `None` before the first."""

    def began(self, *, epoch: int, step: int, resumed: bool) -> None:
        """Note that the trainer took the run over."""
        self._has_run = True
        self._status.epoch = epoch
        self._status.step = step
        done = [entry["step"] for entry in self._run_directory.validations() if entry["step"] <= step]
        self.validated_step = max(done, default=None)
        if resumed:
            self._announce(f"[Trainer] resumed at step {step}")

    def step(
        self,
        batch: Batch,
        *,
        figures: BatchFigures,
        metrics: StepMetrics,
        step: int,
        version: int,
        times: StepTimes,
    ) -> None:
        """Report one step."""
        tokens_per_second = figures.num_tokens / max(times.total_seconds, 1e-9)
        values: dict[str, Any] = {
            "step": step,
            "epoch": self._status.epoch,
            "time": time.time(),
            "version": version,
            **metrics.as_dict(),
            **asdict(figures),
            **asdict(times),
            "wait_share": times.wait_seconds / max(times.total_seconds, 1e-9),
            "tokens_per_second": tokens_per_second,
            "queue_ready": batch.num_ready,
        }
        self._run_directory.append_metrics(values)
        self._write_samples(batch, step=step, version=version)
        self._status.step = step
        self._status.metrics = {
            name: float(values[name])
            for name in (
                "reward_mean",
                "pass_rate",
                "loss",
                "staleness_mean",
                "staleness_max",
                "tokens_per_second",
                "wait_share",
                "queue_ready",
            )
        }
        total = self._config.trainer.total_steps
        self._announce(
            f"[Step {step}/{total}] {figures.num_trajectories} rollouts, reward {figures.reward_mean:.2f}, "
            f"pass@1 {100 * figures.pass_rate:.1f} %, version {version}, staleness {figures.staleness_mean:.1f} "
            f"(max {figures.staleness_max}), {_rate(tokens_per_second)} tok/s"
        )

    def validated(self, measurement: Measurement) -> None:
        """Report a measurement of held-out tasks."""
        self.validated_step = measurement.step
        self._run_directory.append_validation({**measurement.as_dict(), "epoch": self._status.epoch})
        self._announce(
            f"[Validation] step {measurement.step}, version {measurement.version}: "
            f"pass@1 {100 * measurement.pass_rate:.1f} %, reward {measurement.reward_mean:.2f} "
            f"({measurement.num_tasks} held-out tasks, {measurement.num_attempts} attempts)"
        )

    def finished(
        self, ledgers: Iterable[Ledger], letters: Iterable[DeadLetter], *, seconds: float, num_versions: int
    ) -> None:
        """Write `ledger.json` and `summary.json`."""
        account = self._write_ledger(ledgers, letters)
        self._run_directory.write_summary(self._summary(account, seconds=seconds, num_versions=num_versions))

    async def failed(self, error: BaseException, queue: QueueLink) -> None:
        """Write `ledger.json` of a run that an error ended, if the queue answers soon."""
        # A trainer that was replaced or never took over must not touch another one's files.
        if not self._has_run or isinstance(error, FencedError) or not isinstance(error, Exception):
            return
        with suppress(HeadraceError, OSError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                self._write_ledger(await queue.ledgers(), await queue.dead_letters(max_letters=MAX_DEAD_LETTERS))

    def _write_ledger(self, ledgers: Iterable[Ledger], letters: Iterable[DeadLetter]) -> dict[str, Any]:
        """Write `ledger.json`; returns what it holds."""
        accounts = {ledger.partition.value: _ledger_values(ledger) for ledger in ledgers}
        account: dict[str, Any] = {
            "lost": sum(values["lost"] for values in accounts.values()),
            "trained_twice": sum(values["trained_twice"] for values in accounts.values()),
            **accounts,
            "dead_letters": [asdict(letter) for letter in letters],
        }
        self._run_directory.write_ledger(account)
        return account

    def _summary(self, account: dict[str, Any], *, seconds: float, num_versions: int) -> dict[str, Any]:
        """What became of the run."""
        steps = self._run_directory.steps()
        measured = self._run_directory.validations()
        before = [entry for entry in measured if entry["step"] == 0]
        num_tokens = sum(entry["num_tokens"] for entry in steps)
        return {
            "state": "finished",
            "run_id": self._status.run_id,
            "steps": self._status.step,
            "total_steps": self._config.trainer.total_steps,
            "pass_rate_before": before[-1]["pass_rate"] if before else None,
            "pass_rate_after": measured[-1]["pass_rate"] if measured else None,
            "reward_first": steps[0]["reward_mean"] if steps else None,
            "reward_last": steps[-1]["reward_mean"] if steps else None,
            "seconds": seconds,
            "tokens": num_tokens,
            "tokens_per_second": num_tokens / max(seconds, 1e-9),
            "trajectories": sum(entry["num_trajectories"] for entry in steps),
            "versions": num_versions,
            "epoch": self._status.epoch,
            "staleness_mean": mean(entry["staleness_mean"] for entry in steps),
            "staleness_max": max((entry["staleness_max"] for entry in steps), default=0),
            "max_staleness": self._config.async_.max_staleness,
            "wait_share": mean(entry["wait_share"] for entry in steps),
            "lost": account["lost"],
            "trained_twice": account["trained_twice"],
            "ledger": account,
        }

    def _write_samples(self, batch: Batch, *, step: int, version: int) -> None:
        """Keep a few trajectories for people to read."""
        for group in batch.groups[:SAMPLES_PER_STEP]:
            for trajectory in group.trajectories[:1]:
                prompt = self._source.row(group.sequence).messages
                self._run_directory.append_sample(
                    {
                        "step": step,
                        "trajectory": str(trajectory.key),
                        "prompt": [{"role": message.role, "content": message.content} for message in prompt],
                        "completion": trajectory.completion,
                        "reward": trajectory.score.reward,
                        "end_reason": trajectory.end_reason.value,
                        "version": trajectory.newest_version,
                        "staleness": staleness(trajectory, version=version),
                    }
                )


def _ledger_values(ledger: Ledger) -> dict[str, Any]:
    """One partition's account as plain values."""
    return {
        "lost": ledger.lost,
        "trained_twice": ledger.trained_twice,
        "commits": ledger.commits,
        "tasks": {**asdict(ledger.tasks), "lost": ledger.tasks.lost},
        "trajectories": {**asdict(ledger.trajectories), "lost": ledger.trajectories.lost},
    }


def _rate(value: float) -> str:
    """A rate for people: `870`, `5.1k`, `2.3M`."""
    for bound, letter in ((1e6, "M"), (1e3, "k")):
        if value >= bound:
            return f"{value / bound:.1f}{letter}"
    return f"{value:.0f}"
