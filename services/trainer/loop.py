"""The training loop: takes the run over, then leases, steps, publishes and commits until the run is done.

Owns the order in which things become final: a step's groups are consumed when the checkpoint that contains the step is
on disk and its commit was applied; a version's number is on disk before it is used. Owns also the one place that reacts
when the queue's store has lost or regained state: between two steps, it makes what was trained final and the queue's
truth (`_in_step`). Knows no gRPC: queue, backend and shelf are ports.

    take over -> publish -> measure -> [lease -> check age -> step -> publish -> checkpoint -> commit] -> finish

Example: `await TrainingLoop(parts, config=config, run_settings=settings).run()`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from services.common.errors import ReconcileRequiredError
from services.common.telemetry import names
from services.common.telemetry.trace import span_traceparent, start_span
from services.common.types import Partition
from services.trainer.account import Account
from services.trainer.advantage import group_advantages
from services.trainer.batching import training_rows
from services.trainer.collecting import BatchCollector
from services.trainer.committing import MAX_RECONCILES, Committer
from services.trainer.export import remove_debris
from services.trainer.feeding import Feeder
from services.trainer.figures import batch_figures, check_age
from services.trainer.reporting import MAX_DEAD_LETTERS, Reporter, StepTimes
from services.trainer.status import TrainerState
from services.trainer.takeover import take_over
from services.trainer.tracing import trace_batch
from services.trainer.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from services.common.config import RunConfig
    from services.common.types import Group, Ledger, RunSettings
    from services.trainer.backend.port import PolicyWeights, StepMetrics
    from services.trainer.collecting import Batch
    from services.trainer.parts import LoopParts
    from services.trainer.takeover import Takeover

T = TypeVar("T")


class TrainingLoop:
    """One trainer's work on one run."""

    def __init__(self, parts: LoopParts, *, config: RunConfig, run_settings: RunSettings) -> None:
        """Prepare; nothing happens before `run`.

        Args:
            parts: what to work with.
            config: the run's configuration.
            run_settings: the rules that the queue holds for the run.
        """
        self._parts = parts
        self._config = config
        self._run_settings = run_settings
        self._stop = asyncio.Event()
        self._began = time.monotonic()
        self._steps_since_version = 0
        self._checkpoint_seconds = 0.0
        self._step_traceparent: str | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._reporter = Reporter(
            parts.run_directory, parts.status, source=parts.source, config=config, announce=parts.announce
        )

    def request_stop(self) -> None:
        """End after the running step, with a checkpoint and a commit."""
        self._stop.set()

    async def run(self) -> None:
        """Train until the run is done or a stop is requested; `status.state` says which.

        Raises:
            FencedError: a newer trainer took the run over.
            StalledError: nothing came for too long.
        """
        status = self._parts.status
        try:
            status.state = await self._run()
        except BaseException as error:
            status.state = TrainerState.FAILED
            await self._reporter.failed(error, self._parts.queue)
            raise

    async def _run(self) -> TrainerState:
        """Take the run over and work on it."""
        parts = self._parts
        takeover = await take_over(
            parts.queue,
            parts.backend,
            parts.checkpoints,
            settings=self._run_settings,
            thread=parts.thread,
            versions=parts.versions,
            has_begun=parts.run_directory.has_metrics,
        )
        await parts.thread.run(self._remove_debris)
        for damaged in parts.checkpoints.damaged:
            parts.announce(f"[Trainer] skipped a damaged checkpoint, {damaged}")
        self._account = Account(takeover.checkpoint)
        self._seconds_before = takeover.checkpoint.seconds if takeover.checkpoint else 0.0
        self._reporter.began(epoch=parts.queue.epoch, step=self._account.step, resumed=takeover.checkpoint is not None)
        if takeover.run.finished:
            await self._report_end(await parts.queue.ledgers(), num_versions=takeover.run.policy_version + 1)
            return TrainerState.FINISHED
        self._assemble(takeover)
        with lone_error():
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._publish(above=takeover.newest_version, branch=takeover.is_branch)
                # Capacity counts from this version, so nothing is fed before the queue knows it.
                await self._published()
                tasks.create_task(self._feeder.run())
                state = await self._train()
                self._feeder.stop()
        return state

    def _remove_debris(self) -> None:
        """Remove what earlier trainers were writing; one that only slept finds its half-written files gone."""
        self._parts.checkpoints.remove_debris(self._parts.queue.epoch)
        remove_debris(self._parts.run_directory.final)

    def _assemble(self, takeover: Takeover) -> None:
        """Make what works from the restored account on."""
        parts, trainer, account = self._parts, self._config.trainer, self._account
        self._feeder = Feeder(
            parts.queue,
            parts.source,
            account=account,
            total_groups=trainer.total_steps * trainer.groups_per_step,
            next_sequence=takeover.checkpoint.next_sequence if takeover.checkpoint else 0,
        )
        self._collector = BatchCollector(
            parts.queue,
            account,
            stall_seconds=trainer.stall_seconds,
            stop=self._stop,
            clock=time.monotonic,
            wall_clock=time.time,
        )
        self._committer = Committer(
            parts.queue,
            parts.backend,
            thread=parts.thread,
            checkpoints=parts.checkpoints,
            publisher=parts.publisher,
            versions=parts.versions,
            feeder=self._feeder,
            account=account,
            newest=takeover.checkpoint,
            seconds=self._seconds,
        )

    async def _train(self) -> TrainerState:
        """Do the steps that are left, and end the run."""
        total = self._config.trainer.total_steps
        await self._validate()
        while self._account.step < total and not self._stop.is_set():
            self._set_state(TrainerState.WAITING)
            began = time.monotonic()
            batch = await self._collect()
            if batch.end_of_data and not batch.groups:
                self._parts.announce(f"[Trainer] the data has ended after {self._account.step} of {total} steps")
            if self._stop.is_set() or not batch.groups:
                break
            await self._step(batch, began=began)
            await self._validate()
        return await self._pause() if self._stop.is_set() else await self._finish()

    async def _collect(self) -> Batch:
        """Lease the groups of the next step."""
        return await self._in_step(
            lambda: self._collector.collect(
                self._config.trainer.groups_per_step, use_version=self._parts.publisher.version, nudge=self._nudge
            )
        )

    async def _in_step(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call between two steps; brings the queue in line, and calls again, when its store is out of step."""
        for _ in range(MAX_RECONCILES):
            try:
                return await call()
            except ReconcileRequiredError as error:
                await self._published()
                await self._committer.reconcile(error.message)
        raise ReconcileRequiredError(f"the queue is out of step after {MAX_RECONCILES} reconciliations in a row")

    async def _nudge(self) -> None:
        """Tell the queue again what it should know, in case its store lost it."""
        self._feeder.rewind()
        await self._published()
        await self._parts.publisher.remind()

    async def _step(self, batch: Batch, *, began: float) -> None:
        """Use a batch: check its age, step, publish and commit as due, and write it down."""
        self._set_state(TrainerState.TRAINING)
        parts, config = self._parts, self._config
        version = parts.publisher.version
        check_age(batch.groups, version=version, max_staleness=config.async_.max_staleness)
        figures = batch_figures(batch.groups, version=version, pass_threshold=config.reward.pass_threshold)
        leased = time.monotonic()
        step_time = time.time()
        trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
        with start_span(
            names.SPAN_TRAIN_STEP,
            links=[trajectory.traceparent for trajectory in trajectories],
            attributes={
                names.RUN_ID: parts.status.run_id,
                names.STEP: self._account.step + 1,
                names.POLICY_VERSION: version,
                names.NUM_TRAJECTORIES: len(trajectories),
            },
        ) as span:
            metrics, advantages = await parts.thread.run(self._compute, batch.groups)
            # Whoever slept through its own replacement ends here, and leaves no line behind.
            await parts.thread.run(parts.versions.check)
            span.set_attribute(names.LOSS, metrics.loss)
            self._step_traceparent = span_traceparent(span)
        trained = time.monotonic()
        self._account.note_step(batch.groups, num_tokens=figures.num_tokens)
        self._steps_since_version += 1
        trace_batch(
            batch,
            advantages=advantages,
            step=self._account.step,
            version=version,
            step_traceparent=self._step_traceparent,
            step_time=step_time,
        )
        await self._publish_if_due()
        # Before the checkpoint: a step that it makes final must not lack its line.
        self._reporter.step(
            batch,
            figures=figures,
            metrics=metrics,
            step=self._account.step,
            version=version,
            times=StepTimes(
                wait_seconds=leased - began,
                train_seconds=trained - leased,
                publish_seconds=time.monotonic() - trained,
                checkpoint_seconds=self._checkpoint_seconds,
            ),
        )
        await self._checkpoint_if_due()

    def _compute(self, groups: Sequence[Group]) -> tuple[StepMetrics, list[list[float]]]:
        """Advantages, loss and step; runs in the backend's thread."""
        algorithm = self._config.algorithm
        advantages = group_advantages(
            [[trajectory.score.reward for trajectory in group.trajectories] for group in groups],
            estimator=algorithm.advantage,
            norm_by_std=algorithm.normalize_by_std,
        )
        return self._parts.backend.step(training_rows(groups, advantages)), advantages

    async def _publish_if_due(self) -> None:
        """Assign a version after `updates_per_version` steps, and after the last one."""
        is_last = self._account.step == self._config.trainer.total_steps
        if self._steps_since_version >= self._config.async_.updates_per_version or is_last:
            await self._publish()

    async def _publish(self, *, above: int = -1, branch: bool = False) -> None:
        """Assign a version and snapshot it; what follows runs beside the next step."""
        self._set_state(TrainerState.PUBLISHING)
        parts = self._parts
        await self._published()
        await parts.publisher.assign(above=above, branch=branch)
        parts.status.policy_version = parts.publisher.version
        weights = await parts.thread.run(parts.backend.snapshot)
        self._steps_since_version = 0
        self._publishing = self._tasks.create_task(self._finish_publishing(weights))

    async def _finish_publishing(self, weights: PolicyWeights) -> None:
        """Describe, register and serve a snapshot, and let the feeder know."""
        await self._parts.publisher.publish(weights, after_step=self._step_traceparent)
        self._parts.status.policy_digest = self._parts.publisher.digest
        self._feeder.wake()

    async def _published(self) -> None:
        """Wait until the newest version is served."""
        if self._publishing is not None:
            await self._publishing

    async def _checkpoint_if_due(self) -> None:
        """Checkpoint and commit every `checkpoint_every` steps, at the next version, and after the last step."""
        began, step, trainer = time.monotonic(), self._account.step, self._config.trainer
        is_due = step - self._committer.saved_step >= trainer.checkpoint_every and self._steps_since_version == 0
        if is_due or step == trainer.total_steps:
            await self._checkpoint()
        self._checkpoint_seconds = time.monotonic() - began

    async def _checkpoint(self) -> None:
        """Write a checkpoint and commit it."""
        self._set_state(TrainerState.PUBLISHING)
        await self._committer.save()
        # The commit names the newest version, so the queue must know it.
        await self._published()
        await self._committer.commit()

    async def _validate(self, *, at_end: bool = False) -> None:
        """Measure held-out tasks when it is time: before the first step, every so many steps, at the end."""
        if self._parts.held_out is None or not self._validation_due(at_end=at_end):
            return
        self._set_state(TrainerState.VALIDATING)
        await self._published()
        validator = Validator(
            self._parts.queue,
            self._parts.held_out,
            group_size=self._config.validation.group_size,
            pass_threshold=self._config.reward.pass_threshold,
            stall_seconds=self._config.trainer.stall_seconds,
            stop=self._stop,
        )
        version, step = self._parts.publisher.version, self._account.step
        measurement = await self._in_step(lambda: validator.measure(version=version, step=step))
        if measurement is not None:
            self._reporter.validated(measurement)

    def _validation_due(self, *, at_end: bool) -> bool:
        """Whether the present weights are to be measured and were not yet."""
        step, every = self._account.step, self._config.validation.every
        newest = self._reporter.validated_step
        if newest == step or self._stop.is_set():
            return False
        if at_end or step == 0:
            return True
        return bool(every) and step - (newest or 0) >= every and self._steps_since_version == 0

    async def _finish(self) -> TrainerState:
        """Measure and export the final weights, and close the run."""
        if self._steps_since_version:
            await self._publish()
        if self._account.has_pending:
            await self._checkpoint()
        await self._validate(at_end=True)
        if self._stop.is_set():
            return await self._pause()
        parts = self._parts
        self._set_state(TrainerState.PUBLISHING)
        await parts.thread.run(self._export)
        self._feeder.stop()
        await self._published()
        ledgers = await self._committer.close_run()
        await self._report_end(ledgers, num_versions=parts.publisher.version + 1)
        return TrainerState.FINISHED

    def _export(self) -> None:
        """Write the final model; runs in the backend's thread."""
        parts = self._parts
        parts.run_directory.replace_final(parts.backend.export, check=parts.versions.check)

    async def _report_end(self, ledgers: Sequence[Ledger], *, num_versions: int) -> None:
        """Write what is left to say of the run."""
        letters = await self._parts.queue.dead_letters(max_letters=MAX_DEAD_LETTERS)
        self._reporter.finished(ledgers, letters, seconds=self._seconds(), num_versions=num_versions)

    async def _pause(self) -> TrainerState:
        """Stop with everything that was done kept, so that the run can go on later."""
        if self._account.has_pending:
            await self._checkpoint()
        await self._parts.queue.release(Partition.TRAIN)
        return TrainerState.STOPPED

    def _set_state(self, state: TrainerState) -> None:
        self._parts.status.state = state

    def _seconds(self) -> float:
        """Wall time trained so far, over all restarts."""
        return self._seconds_before + time.monotonic() - self._began


@contextmanager
def lone_error() -> Iterator[None]:
    """Let the error that ended a task group leave it as itself, so that callers can catch it by its class."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
