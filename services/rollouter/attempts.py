"""One attempt: run the agent loop, score what it made, and say by name what went wrong.

Guarantees: an attempt always ends as a scored trajectory or as a named failure, never as a reward that nobody gave, and
whatever its agent loop raises stays here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from services.common.errors import HeadraceError
from services.common.telemetry import names, trace
from services.common.types import MAX_ABS_REWARD, FailedMember, Failure, FailureReason, ScoreRequest, Trajectory
from services.rollouter.agents.port import AttemptFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.types import Assignment, ReplicaId, RunId, Score, TokenRow
    from services.rollouter.agents.port import AgentLoop, Attempt
    from services.rollouter.model_calls import ModelCalls
    from services.rollouter.ports import Scorer

_log = structlog.get_logger("headrace.rollouter")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRunner:
    """Turns leased members into trajectories or failures.

    Example: `result = await runner.run(assignment, calls, on_generated=free_the_slot)`.
    """

    run_id: RunId
    """The run."""
    replica_id: ReplicaId
    """This replica."""
    agent: AgentLoop
    """Makes the rows."""
    scorer: Scorer
    """Gives the reward."""
    explain: Callable[[HeadraceError], Failure]
    """Names the failure of a score."""
    score_seconds: float
    """Longest time for a score, retries included."""

    async def run(
        self, assignment: Assignment, calls: ModelCalls, *, on_generated: Callable[[], None]
    ) -> Trajectory | FailedMember:
        """Attempt one member.

        Args:
            assignment: the lease.
            calls: the engine as this attempt sees it.
            on_generated: called when the engine is no longer needed.
        """
        start_time = time.time()
        self._record_wait(assignment)
        try:
            attempt = await self._attempt(assignment, calls)
            on_generated()
            score, reward_seconds = await self._score(assignment, attempt)
        except AttemptFailedError as error:
            _log.warning("attempt failed", lease_id=assignment.lease_id, reason=error.failure.reason, error=str(error))
            return FailedMember(key=assignment.key, lease_id=assignment.lease_id, failure=error.failure)
        versions = [span.version for row in attempt.rows for span in row.version_spans]
        return Trajectory(
            key=assignment.key,
            lease_id=assignment.lease_id,
            replica_id=self.replica_id,
            sequence=assignment.task.sequence,
            rows=attempt.rows,
            completion=attempt.completion,
            end_reason=attempt.end_reason,
            score=score,
            oldest_version=min(versions),
            newest_version=max(versions),
            traceparent=assignment.traceparent,
            start_time=start_time,
            end_time=time.time(),
            metrics={
                "wait_seconds": max(0.0, assignment.issue_time - assignment.enqueue_time),
                "generate_seconds": calls.generate_seconds,
                "reward_seconds": reward_seconds,
                "num_tokens": float(sum(int(row.loss_mask.sum()) for row in attempt.rows)),
            },
        )

    async def _attempt(self, assignment: Assignment, calls: ModelCalls) -> Attempt:
        """Run the agent loop and check what it made."""
        try:
            attempt = await self.agent.run(assignment.task, assignment.key, calls)
            _check_rows(attempt.rows)
        except AttemptFailedError:
            raise
        except Exception as error:
            # The boundary of an attempt: whatever a loop raises ends this trajectory and no other.
            _log.exception("an agent loop raised", lease_id=assignment.lease_id)
            message = f"the agent loop raised {type(error).__name__}: {error}"
            raise AttemptFailedError(Failure(reason=FailureReason.AGENT_ERROR, message=message)) from error
        return attempt

    async def _score(self, assignment: Assignment, attempt: Attempt) -> tuple[Score, float]:
        """Return the score and the seconds it took."""
        request = ScoreRequest(
            run_id=self.run_id,
            trajectory_id=assignment.lease_id,
            messages=assignment.task.messages,
            completion=attempt.completion,
            scoring=assignment.task.scoring,
        )
        started = time.monotonic()
        parent = assignment.traceparent
        with trace.start_span(names.SPAN_REWARD_SCORE, parent=parent) as span:
            try:
                score = await self.scorer.score(request, timeout_seconds=self.score_seconds, traceparent=parent)
            except Exception as error:
                # The boundary of an attempt: whatever stands between it and its reward ends this trajectory only.
                failure = self.explain(error) if isinstance(error, HeadraceError) else _unexpected(error)
                span.set_attribute(names.FAILURE_REASON, failure.reason)
                raise AttemptFailedError(failure) from error
            # Written so that NaN is refused too.
            if not abs(score.reward) <= MAX_ABS_REWARD:
                message = (
                    f"scorer {score.scorer!r} gave {score.reward:g}; a reward is a number from {-MAX_ABS_REWARD:g} "
                    f"to {MAX_ABS_REWARD:g}"
                )
                span.set_attribute(names.FAILURE_REASON, FailureReason.REWARD_ERROR)
                raise AttemptFailedError(Failure(reason=FailureReason.REWARD_ERROR, message=message))
            span.set_attribute(names.REWARD, score.reward)
            span.set_attribute(names.SCORER, score.scorer)
            span.set_attribute(names.SCORER_VERSION, score.scorer_version)
        return score, time.monotonic() - started

    def _record_wait(self, assignment: Assignment) -> None:
        """Write the span of the wait before this lease; both ends are by the queue's clock."""
        trace.record_span(
            names.SPAN_TASK_WAIT,
            parent=assignment.traceparent,
            start_time=assignment.enqueue_time,
            end_time=assignment.issue_time,
            attributes={names.ISSUE: assignment.issue, names.REPLICA_ID: self.replica_id},
        )


def _unexpected(error: Exception) -> Failure:
    """Name a failure that no part of the contract foresees."""
    _log.error("scoring raised what it should not", exc_info=error)
    return Failure(reason=FailureReason.REWARD_ERROR, message=f"scoring raised {type(error).__name__}: {error}")


def _check_rows(rows: tuple[TokenRow, ...]) -> None:
    """Refuse rows that could not be trained on as they were sampled."""
    if not any(row.version_spans for row in rows):
        raise ValueError("the attempt has no sampled token")
    for row in rows:
        covered = sum(span.end - span.start for span in row.version_spans)
        if covered != int(row.loss_mask.sum()):
            raise ValueError(f"version spans cover {covered} tokens and the mask {int(row.loss_mask.sum())}")
