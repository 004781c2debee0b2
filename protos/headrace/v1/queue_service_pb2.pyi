import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from headrace.v1 import task_pb2 as _task_pb2
from headrace.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnStale(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_STALE_UNSPECIFIED: _ClassVar[OnStale]
    ON_STALE_REFILL: _ClassVar[OnStale]
    ON_STALE_DROP: _ClassVar[OnStale]
    ON_STALE_WAIT: _ClassVar[OnStale]

class WhenFull(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHEN_FULL_UNSPECIFIED: _ClassVar[WhenFull]
    WHEN_FULL_BLOCK: _ClassVar[WhenFull]
    WHEN_FULL_DROP_OLDEST: _ClassVar[WhenFull]

class ReleaseReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_REASON_UNSPECIFIED: _ClassVar[ReleaseReason]
    RELEASE_REASON_DRAIN: _ClassVar[ReleaseReason]
    RELEASE_REASON_STALE: _ClassVar[ReleaseReason]

class PutOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_OUTCOME_UNSPECIFIED: _ClassVar[PutOutcome]
    PUT_OUTCOME_ACCEPTED: _ClassVar[PutOutcome]
    PUT_OUTCOME_DUPLICATE: _ClassVar[PutOutcome]
    PUT_OUTCOME_REISSUED: _ClassVar[PutOutcome]
    PUT_OUTCOME_GIVEN_UP: _ClassVar[PutOutcome]

class GroupOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_OUTCOME_UNSPECIFIED: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_CONSUMED: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_FILTERED: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_DROPPED: _ClassVar[GroupOutcome]

class DropReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DROP_REASON_UNSPECIFIED: _ClassVar[DropReason]
    DROP_REASON_STALE: _ClassVar[DropReason]
    DROP_REASON_QUEUE_FULL: _ClassVar[DropReason]
    DROP_REASON_TOO_FEW_MEMBERS: _ClassVar[DropReason]
    DROP_REASON_RUN_ENDED: _ClassVar[DropReason]
ON_STALE_UNSPECIFIED: OnStale
ON_STALE_REFILL: OnStale
ON_STALE_DROP: OnStale
ON_STALE_WAIT: OnStale
WHEN_FULL_UNSPECIFIED: WhenFull
WHEN_FULL_BLOCK: WhenFull
WHEN_FULL_DROP_OLDEST: WhenFull
RELEASE_REASON_UNSPECIFIED: ReleaseReason
RELEASE_REASON_DRAIN: ReleaseReason
RELEASE_REASON_STALE: ReleaseReason
PUT_OUTCOME_UNSPECIFIED: PutOutcome
PUT_OUTCOME_ACCEPTED: PutOutcome
PUT_OUTCOME_DUPLICATE: PutOutcome
PUT_OUTCOME_REISSUED: PutOutcome
PUT_OUTCOME_GIVEN_UP: PutOutcome
GROUP_OUTCOME_UNSPECIFIED: GroupOutcome
GROUP_OUTCOME_CONSUMED: GroupOutcome
GROUP_OUTCOME_FILTERED: GroupOutcome
GROUP_OUTCOME_DROPPED: GroupOutcome
DROP_REASON_UNSPECIFIED: DropReason
DROP_REASON_STALE: DropReason
DROP_REASON_QUEUE_FULL: DropReason
DROP_REASON_TOO_FEW_MEMBERS: DropReason
DROP_REASON_RUN_ENDED: DropReason

class RunSettings(_message.Message):
    __slots__ = ("max_staleness", "groups_per_version", "on_stale", "max_member_issues", "lease_seconds", "max_queue_size", "max_queue_bytes", "when_full", "min_group_members")
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ON_STALE_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMBER_ISSUES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHEN_FULL_FIELD_NUMBER: _ClassVar[int]
    MIN_GROUP_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    max_staleness: int
    groups_per_version: int
    on_stale: OnStale
    max_member_issues: int
    lease_seconds: float
    max_queue_size: int
    max_queue_bytes: int
    when_full: WhenFull
    min_group_members: int
    def __init__(self, max_staleness: _Optional[int] = ..., groups_per_version: _Optional[int] = ..., on_stale: _Optional[_Union[OnStale, str]] = ..., max_member_issues: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., max_queue_size: _Optional[int] = ..., max_queue_bytes: _Optional[int] = ..., when_full: _Optional[_Union[WhenFull, str]] = ..., min_group_members: _Optional[int] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("run_id", "settings", "owner_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    settings: RunSettings
    owner_id: str
    def __init__(self, run_id: _Optional[str] = ..., settings: _Optional[_Union[RunSettings, _Mapping]] = ..., owner_id: _Optional[str] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("epoch", "commit_number", "policy_version", "replica_version", "created", "run_finished")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    commit_number: int
    policy_version: int
    replica_version: int
    created: bool
    run_finished: bool
    def __init__(self, epoch: _Optional[int] = ..., commit_number: _Optional[int] = ..., policy_version: _Optional[int] = ..., replica_version: _Optional[int] = ..., created: _Optional[bool] = ..., run_finished: _Optional[bool] = ...) -> None: ...

class EnqueueTasksRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "tasks", "partition", "end_of_data", "pinned_version", "num_filtered")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_FILTERED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    partition: _task_pb2.Partition
    end_of_data: bool
    pinned_version: int
    num_filtered: int
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ..., partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., end_of_data: _Optional[bool] = ..., pinned_version: _Optional[int] = ..., num_filtered: _Optional[int] = ...) -> None: ...

class EnqueueTasksResponse(_message.Message):
    __slots__ = ("num_accepted", "remaining_capacity")
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    num_accepted: int
    remaining_capacity: int
    def __init__(self, num_accepted: _Optional[int] = ..., remaining_capacity: _Optional[int] = ...) -> None: ...

class LeaseTasksRequest(_message.Message):
    __slots__ = ("run_id", "replica_id", "max_members", "policy_version", "wait_seconds")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica_id: str
    max_members: int
    policy_version: int
    wait_seconds: float
    def __init__(self, run_id: _Optional[str] = ..., replica_id: _Optional[str] = ..., max_members: _Optional[int] = ..., policy_version: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class LeaseTasksResponse(_message.Message):
    __slots__ = ("assignments", "run_finished", "wanted_version")
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    WANTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[_task_pb2.Assignment]
    run_finished: bool
    wanted_version: int
    def __init__(self, assignments: _Optional[_Iterable[_Union[_task_pb2.Assignment, _Mapping]]] = ..., run_finished: _Optional[bool] = ..., wanted_version: _Optional[int] = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    __slots__ = ("run_id", "replica_id", "lease_ids")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica_id: str
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., replica_id: _Optional[str] = ..., lease_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ExtendLeaseResponse(_message.Message):
    __slots__ = ("lost_lease_ids",)
    LOST_LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lost_lease_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lost_lease_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseTasksRequest(_message.Message):
    __slots__ = ("run_id", "lease_ids", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: ReleaseReason
    def __init__(self, run_id: _Optional[str] = ..., lease_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[_Union[ReleaseReason, str]] = ...) -> None: ...

class ReleaseTasksResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrajectoryRecord(_message.Message):
    __slots__ = ("key", "lease_id", "trajectory", "failure", "oldest_version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    key: _task_pb2.MemberKey
    lease_id: str
    trajectory: bytes
    failure: _trajectory_pb2.Failure
    oldest_version: int
    def __init__(self, key: _Optional[_Union[_task_pb2.MemberKey, _Mapping]] = ..., lease_id: _Optional[str] = ..., trajectory: _Optional[bytes] = ..., failure: _Optional[_Union[_trajectory_pb2.Failure, _Mapping]] = ..., oldest_version: _Optional[int] = ...) -> None: ...

class PutTrajectoriesRequest(_message.Message):
    __slots__ = ("run_id", "records")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    records: _containers.RepeatedCompositeFieldContainer[TrajectoryRecord]
    def __init__(self, run_id: _Optional[str] = ..., records: _Optional[_Iterable[_Union[TrajectoryRecord, _Mapping]]] = ...) -> None: ...

class PutTrajectoriesResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[PutOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[PutOutcome, str]]] = ...) -> None: ...

class LeaseBatchRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "partition", "num_groups", "use_version", "wait_seconds", "max_bytes", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    USE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    partition: _task_pb2.Partition
    num_groups: int
    use_version: int
    wait_seconds: float
    max_bytes: int
    request_id: str
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., num_groups: _Optional[int] = ..., use_version: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., max_bytes: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class LeasedGroup(_message.Message):
    __slots__ = ("task_id", "attempt", "sequence", "group_size", "oldest_version", "trajectories", "put_times")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    PUT_TIMES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    attempt: int
    sequence: int
    group_size: int
    oldest_version: int
    trajectories: _containers.RepeatedScalarFieldContainer[bytes]
    put_times: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    def __init__(self, task_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ..., group_size: _Optional[int] = ..., oldest_version: _Optional[int] = ..., trajectories: _Optional[_Iterable[bytes]] = ..., put_times: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ...) -> None: ...

class LeaseBatchResponse(_message.Message):
    __slots__ = ("groups", "end_of_data", "commit_number", "num_ready")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    END_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_READY_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[LeasedGroup]
    end_of_data: bool
    commit_number: int
    num_ready: int
    def __init__(self, groups: _Optional[_Iterable[_Union[LeasedGroup, _Mapping]]] = ..., end_of_data: _Optional[bool] = ..., commit_number: _Optional[int] = ..., num_ready: _Optional[int] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("task_id", "attempt", "outcome", "drop_reason", "sequence")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DROP_REASON_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    attempt: int
    outcome: GroupOutcome
    drop_reason: DropReason
    sequence: int
    def __init__(self, task_id: _Optional[str] = ..., attempt: _Optional[int] = ..., outcome: _Optional[_Union[GroupOutcome, str]] = ..., drop_reason: _Optional[_Union[DropReason, str]] = ..., sequence: _Optional[int] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "partition", "commit_number", "results", "policy_version", "final")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    partition: _task_pb2.Partition
    commit_number: int
    results: _containers.RepeatedCompositeFieldContainer[GroupResult]
    policy_version: int
    final: bool
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., commit_number: _Optional[int] = ..., results: _Optional[_Iterable[_Union[GroupResult, _Mapping]]] = ..., policy_version: _Optional[int] = ..., final: _Optional[bool] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ("commit_number",)
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    commit_number: int
    def __init__(self, commit_number: _Optional[int] = ...) -> None: ...

class ReleaseBatchRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "partition")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    partition: _task_pb2.Partition
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., partition: _Optional[_Union[_task_pb2.Partition, str]] = ...) -> None: ...

class ReleaseBatchResponse(_message.Message):
    __slots__ = ("num_released",)
    NUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    num_released: int
    def __init__(self, num_released: _Optional[int] = ...) -> None: ...

class RegisterVersionRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "version", "digest", "branch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    version: int
    digest: str
    branch: bool
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., branch: _Optional[bool] = ...) -> None: ...

class RegisterVersionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("run_id", "status")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    status: ReplicaStatus
    def __init__(self, run_id: _Optional[str] = ..., status: _Optional[_Union[ReplicaStatus, _Mapping]] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("replica_id", "service", "policy_version", "policy_digest", "busy_slots", "max_slots", "address", "state", "metrics", "age_seconds")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUSY_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    service: str
    policy_version: int
    policy_digest: str
    busy_slots: int
    max_slots: int
    address: str
    state: str
    metrics: _containers.ScalarMap[str, float]
    age_seconds: float
    def __init__(self, replica_id: _Optional[str] = ..., service: _Optional[str] = ..., policy_version: _Optional[int] = ..., policy_digest: _Optional[str] = ..., busy_slots: _Optional[int] = ..., max_slots: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., age_seconds: _Optional[float] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("run_finished",)
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    run_finished: bool
    def __init__(self, run_finished: _Optional[bool] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class TaskLedger(_message.Message):
    __slots__ = ("fed", "refilled", "consumed", "filtered", "dropped", "dead_lettered", "open")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FED_FIELD_NUMBER: _ClassVar[int]
    REFILLED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    fed: int
    refilled: int
    consumed: int
    filtered: int
    dropped: _containers.ScalarMap[str, int]
    dead_lettered: int
    open: int
    def __init__(self, fed: _Optional[int] = ..., refilled: _Optional[int] = ..., consumed: _Optional[int] = ..., filtered: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., dead_lettered: _Optional[int] = ..., open: _Optional[int] = ...) -> None: ...

class TrajectoryLedger(_message.Message):
    __slots__ = ("issued", "put", "duplicate", "lapsed", "failed", "released", "in_flight")
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReleasedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    LAPSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    issued: int
    put: int
    duplicate: int
    lapsed: int
    failed: _containers.ScalarMap[str, int]
    released: _containers.ScalarMap[str, int]
    in_flight: int
    def __init__(self, issued: _Optional[int] = ..., put: _Optional[int] = ..., duplicate: _Optional[int] = ..., lapsed: _Optional[int] = ..., failed: _Optional[_Mapping[str, int]] = ..., released: _Optional[_Mapping[str, int]] = ..., in_flight: _Optional[int] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("partition", "tasks", "trajectories", "trained_twice", "commits", "first_open_sequence", "ended_sequences")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    TRAINED_TWICE_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPEN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    partition: _task_pb2.Partition
    tasks: TaskLedger
    trajectories: TrajectoryLedger
    trained_twice: int
    commits: int
    first_open_sequence: int
    ended_sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., tasks: _Optional[_Union[TaskLedger, _Mapping]] = ..., trajectories: _Optional[_Union[TrajectoryLedger, _Mapping]] = ..., trained_twice: _Optional[int] = ..., commits: _Optional[int] = ..., first_open_sequence: _Optional[int] = ..., ended_sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("ledgers",)
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[Ledger]
    def __init__(self, ledgers: _Optional[_Iterable[_Union[Ledger, _Mapping]]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class PartitionStats(_message.Message):
    __slots__ = ("partition", "pending_members", "in_flight_members", "open_groups", "ready_groups", "leased_groups", "payload_bytes", "held_for_groups", "queued_bytes", "data_ended", "ask_age_seconds", "commit_age_seconds")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PENDING_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_GROUPS_FIELD_NUMBER: _ClassVar[int]
    READY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEASED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FOR_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_ENDED_FIELD_NUMBER: _ClassVar[int]
    ASK_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    partition: _task_pb2.Partition
    pending_members: int
    in_flight_members: int
    open_groups: int
    ready_groups: int
    leased_groups: int
    payload_bytes: int
    held_for_groups: int
    queued_bytes: int
    data_ended: bool
    ask_age_seconds: float
    commit_age_seconds: float
    def __init__(self, partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., pending_members: _Optional[int] = ..., in_flight_members: _Optional[int] = ..., open_groups: _Optional[int] = ..., ready_groups: _Optional[int] = ..., leased_groups: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., held_for_groups: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., data_ended: _Optional[bool] = ..., ask_age_seconds: _Optional[float] = ..., commit_age_seconds: _Optional[float] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("partitions", "policy_version", "epoch", "commit_number", "replicas", "run_finished", "settings")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStats]
    policy_version: int
    epoch: int
    commit_number: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    run_finished: bool
    settings: RunSettings
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionStats, _Mapping]]] = ..., policy_version: _Optional[int] = ..., epoch: _Optional[int] = ..., commit_number: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., run_finished: _Optional[bool] = ..., settings: _Optional[_Union[RunSettings, _Mapping]] = ...) -> None: ...

class ReconcileRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "commit_number", "first_open_sequence", "ended_sequences", "policy_version", "num_consumed", "num_filtered", "num_dropped")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPEN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    NUM_FILTERED_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    commit_number: int
    first_open_sequence: int
    ended_sequences: _containers.RepeatedScalarFieldContainer[int]
    policy_version: int
    num_consumed: int
    num_filtered: int
    num_dropped: int
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., commit_number: _Optional[int] = ..., first_open_sequence: _Optional[int] = ..., ended_sequences: _Optional[_Iterable[int]] = ..., policy_version: _Optional[int] = ..., num_consumed: _Optional[int] = ..., num_filtered: _Optional[int] = ..., num_dropped: _Optional[int] = ...) -> None: ...

class ReconcileResponse(_message.Message):
    __slots__ = ("num_removed",)
    NUM_REMOVED_FIELD_NUMBER: _ClassVar[int]
    num_removed: int
    def __init__(self, num_removed: _Optional[int] = ...) -> None: ...

class GetDeadLettersRequest(_message.Message):
    __slots__ = ("run_id", "max_letters")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    max_letters: int
    def __init__(self, run_id: _Optional[str] = ..., max_letters: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("partition", "task_id", "attempt", "sequence", "time", "reasons")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    partition: _task_pb2.Partition
    task_id: str
    attempt: int
    sequence: int
    time: _timestamp_pb2.Timestamp
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, partition: _Optional[_Union[_task_pb2.Partition, str]] = ..., task_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class GetDeadLettersResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunSummary(_message.Message):
    __slots__ = ("run_id", "format", "readable", "finished", "epoch", "commit_number", "policy_version", "payload_bytes", "open_tasks", "create_time", "trainer_idle_seconds", "idle_seconds")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_TASKS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRAINER_IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    format: str
    readable: bool
    finished: bool
    epoch: int
    commit_number: int
    policy_version: int
    payload_bytes: int
    open_tasks: int
    create_time: _timestamp_pb2.Timestamp
    trainer_idle_seconds: float
    idle_seconds: float
    def __init__(self, run_id: _Optional[str] = ..., format: _Optional[str] = ..., readable: _Optional[bool] = ..., finished: _Optional[bool] = ..., epoch: _Optional[int] = ..., commit_number: _Optional[int] = ..., policy_version: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., open_tasks: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trainer_idle_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunSummary]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunSummary, _Mapping]]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id", "force")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    force: bool
    def __init__(self, run_id: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ("num_keys", "complete")
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    num_keys: int
    complete: bool
    def __init__(self, num_keys: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...
