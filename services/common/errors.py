"""The one error tree. Each class says when it is raised, whether a retry helps, its gRPC code and its reason.

    HeadraceError
    |-- InvalidInputError      INVALID_ARGUMENT     caller's mistake; the message has the value and the bound
    |   `-- ConfigError        (never on the wire)  a config file, flag or dataset row is wrong
    |-- NotFoundError          NOT_FOUND            no such run, version or lease
    |-- ConflictError          ALREADY_EXISTS       the same id with other content
    |-- FencedError            FAILED_PRECONDITION  a newer trainer epoch has taken the run over
    |-- ReconcileRequiredError FAILED_PRECONDITION  the queue's commit counter and the checkpoint disagree
    |-- RunFinishedError       FAILED_PRECONDITION  the run has ended; no more work will come
    |-- RunNotFinishedError    FAILED_PRECONDITION  the run goes on, and what was asked for is for finished ones
    |-- StateFormatError       FAILED_PRECONDITION  another version of Headrace wrote the run's state
    |-- QuotaError             RESOURCE_EXHAUSTED   a run asks for more than the queue grants; waiting does not help
    |-- OverloadedError        RESOURCE_EXHAUSTED   a bound is reached; retry after a pause
    |-- DeadlineError          DEADLINE_EXCEEDED    the answer did not come in time
    |-- UnavailableError       UNAVAILABLE          the peer or its store cannot be reached; retry
    |-- CorruptDataError       DATA_LOSS            bytes do not match their digest
    |-- ScoringFailedError     ABORTED              a scorer failed; carries a FailureReason, is never a reward
    |-- StorageError           (never on the wire)  a file of the run directory cannot be written
    |-- StalledError           (never on the wire)  a run waited too long for anything to come and cannot go on
    `-- InternalError          INTERNAL             anything else; details stay in the server's log

`services.common.rpc.interceptors` maps the tree to gRPC status with `ErrorInfo` and back to the same class.
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Base of all expected failures."""

    code: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status code."""
    reason: ClassVar[str] = "INTERNAL"
    """Machine-readable reason, unique in the tree."""
    retryable: ClassVar[bool] = False
    """Whether the same call can succeed later without a change."""

    def __init__(self, message: str, **metadata: str) -> None:
        """Keep the sentence for people and the facts for programs.

        Args:
            message: what was wrong, the value, the bound and what to do.
            **metadata: facts that travel in `ErrorInfo.metadata`.
        """
        super().__init__(message)
        self.message = message
        self.metadata = metadata


class InvalidInputError(HeadraceError):
    """The caller sent something that can never work."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_INPUT"


class ConfigError(InvalidInputError):
    """A config file, flag, dataset row or model folder is wrong; shown to the user as one sentence."""

    reason = "INVALID_CONFIG"


class NotFoundError(HeadraceError):
    """No such run, version, lease or scorer."""

    code = "NOT_FOUND"
    reason = "NOT_FOUND"


class ConflictError(HeadraceError):
    """The same client-chosen id came with other content."""

    code = "ALREADY_EXISTS"
    reason = "CONFLICT"


class FencedError(HeadraceError):
    """A newer epoch of the run exists; the caller was replaced and must stop."""

    code = "FAILED_PRECONDITION"
    reason = "STALE_EPOCH"


class ReconcileRequiredError(HeadraceError):
    """The queue's commit counter differs from the trainer's checkpoint; `Reconcile` must come first."""

    code = "FAILED_PRECONDITION"
    reason = "RECONCILE_REQUIRED"


class RunFinishedError(HeadraceError):
    """The run has ended."""

    code = "FAILED_PRECONDITION"
    reason = "RUN_FINISHED"


class RunNotFinishedError(HeadraceError):
    """The run has not finished; the message says how to end it."""

    code = "FAILED_PRECONDITION"
    reason = "RUN_NOT_FINISHED"


class StateFormatError(HeadraceError):
    """The run's state was written by another version of Headrace, and would be misread."""

    code = "FAILED_PRECONDITION"
    reason = "STATE_FORMAT"


class QuotaError(HeadraceError):
    """A run asks for more than the queue service grants; the message names the quota."""

    code = "RESOURCE_EXHAUSTED"
    reason = "QUOTA"


class OverloadedError(HeadraceError):
    """A bound is reached; the message names it."""

    code = "RESOURCE_EXHAUSTED"
    reason = "OVERLOADED"
    retryable = True


class DeadlineError(HeadraceError):
    """The answer did not come before the deadline."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE"
    retryable = True


class UnavailableError(HeadraceError):
    """A service or its store cannot be reached now."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"
    retryable = True


class CorruptDataError(HeadraceError):
    """Bytes do not match the digest they came with."""

    code = "DATA_LOSS"
    reason = "CORRUPT_DATA"


class ScoringFailedError(HeadraceError):
    """A scorer failed; `metadata["failure_reason"]` holds the `FailureReason`."""

    code = "ABORTED"
    reason = "SCORING_FAILED"


class StorageError(HeadraceError):
    """A file of the run directory cannot be written, as on a full disk; what was there before is unharmed."""

    reason = "STORAGE"


class StalledError(HeadraceError):
    """A run waited too long and cannot go on; the message says for what. A restart alone does not help."""

    reason = "STALLED"


class InternalError(HeadraceError):
    """An unexpected failure on the other side; its log has the details under the trace id."""

    reason = "INTERNAL"
