"""The vocabulary: every domain type, once, with a sentence under every field.

Core code speaks these types and nothing else: no gRPC, no protobuf, no clock. The protos carry the same words;
`services.common.convert` translates. Bulk numbers are NumPy arrays in memory and packed bytes on the wire.

Shapes: `T` is the number of tokens of one row, prompt included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RunId = NewType("RunId", str)
TaskId = NewType("TaskId", str)
ReplicaId = NewType("ReplicaId", str)
LeaseId = NewType("LeaseId", str)


class Partition(StrEnum):
    """Which stream of tasks a task belongs to. Each has its own sequence numbers, capacity and ledger tables."""

    TRAIN = "train"
    """Feeds the optimiser; bounded by the staleness rule."""
    VALIDATION = "validation"
    """Measured, never trained on; leaves training data, order and bound untouched."""


class EndReason(StrEnum):
    """Why a trajectory ended, when it ended by itself (a failure has a `FailureReason` instead)."""

    STOP = "stop"
    """The model sampled an end token or a stop string."""
    LENGTH = "length"
    """`max_new_tokens` or the context was used up."""


class FailureReason(StrEnum):
    """Why an issued member produced no trainable trajectory. Never a reward."""

    ENGINE_ERROR = "engine_error"
    """The engine raised, or answered with non-finite numbers."""
    REWARD_ERROR = "reward_error"
    """The scorer raised or its worker died."""
    REWARD_TIMEOUT = "reward_timeout"
    """The scorer did not answer before its deadline."""
    REWARD_UNAVAILABLE = "reward_unavailable"
    """The reward service could not be reached before the deadline."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The rendered prompt leaves no room for one new token."""
    AGENT_ERROR = "agent_error"
    """The agent loop raised."""


class ReleaseReason(StrEnum):
    """Why a holder gave a leased member back unfinished; it is issued again and counts against nobody."""

    DRAIN = "drain"
    """The replica is stopping."""
    STALE = "stale"
    """The trajectory can no longer be in time for the staleness bound, so it was ended early."""


class DropReason(StrEnum):
    """Why a group left the run without being trained on."""

    STALE = "stale"
    """Its oldest token is older than `max_staleness` versions."""
    QUEUE_FULL = "queue_full"
    """`queue.when_full = "drop_oldest"` made room for a newer group."""
    TOO_FEW_MEMBERS = "too_few_members"
    """Fewer members than an advantage needs were scored."""
    RUN_ENDED = "run_ended"
    """The run finished while it was still open."""


class GroupOutcome(StrEnum):
    """What a commit says of a group."""

    CONSUMED = "consumed"
    """It was in an optimiser step that the checkpoint contains (or, in validation, in a measurement)."""
    FILTERED = "filtered"
    """It was looked at and left out on purpose (no signal)."""
    DROPPED = "dropped"
    """It was given up; a `DropReason` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    """The text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled. Log-probs are always those of the resulting distribution."""

    max_new_tokens: int
    """At most this many sampled tokens per model call, >= 1."""
    temperature: float = 1.0
    """>= 0; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 is off."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 is off."""
    stop: tuple[str, ...] = ()
    """Stop strings; generation ends when one appears in the decoded text."""
    stop_token_ids: tuple[int, ...] = ()
    """End tokens in addition to the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSpec:
    """What the reward service needs to score an attempt at a task."""

    answer: str = ""
    """The reference answer; empty when the scorer needs none."""
    scorer: str = ""
    """Name of the scorer; empty means the run's default."""
    metadata_json: str = "{}"
    """The dataset row's other fields as a JSON object, for scorers that look further than `answer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to be tried `group_size` times."""

    task_id: TaskId
    """Client-chosen, unique in the run and partition; the same id with other content is refused."""
    partition: Partition
    """The stream it belongs to."""
    sequence: int
    """Position in the order the seed fixes, >= 0, without holes."""
    messages: tuple[Message, ...]
    """The prompt."""
    group_size: int
    """How many trajectories are wanted, >= 1."""
    sampling: SamplingParams
    """How they are sampled."""
    scoring: ScoringSpec
    """How they are scored."""
    seed: int
    """The run's seed; a sample's own seed is `services.common.seeds.sample_seed(seed, sequence, member)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberKey:
    """Names one trajectory: the id under which it is put and never trained twice."""

    partition: Partition
    """The stream."""
    task_id: TaskId
    """The task."""
    attempt: int
    """How often the whole task was issued before (0 for the first time); grows when a group is refilled."""
    member: int
    """Index in the group, 0 <= member < group_size."""

    def __str__(self) -> str:
        """The trajectory id, e.g. `train/00000012/0/3`."""
        return f"{self.partition}/{self.task_id}/{self.attempt}/{self.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A leased member: the right to produce one trajectory until the deadline."""

    lease_id: LeaseId
    """Names this lease; changes each time the member is issued."""
    key: MemberKey
    """Which trajectory is wanted."""
    issue: int
    """How often this member was issued before in this attempt (0 for the first time)."""
    task: Task
    """The task it belongs to."""
    min_version: int
    """Oldest policy version that may sample it so that it is in time."""
    lease_seconds: float
    """Time until the lease lapses, counted by the queue's server clock from the answer on."""
    traceparent: str
    """W3C trace context of the trajectory's root span."""
    enqueue_time: float
    """When the task was fed, seconds since the epoch, by the Redis server's clock."""
    issue_time: float
    """When this lease was given, seconds since the epoch, by the Redis server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """A stretch of tokens that one policy version sampled."""

    start: int
    """First token of the stretch, index into the row."""
    end: int
    """One past the last token."""
    version: int
    """The policy version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRow:
    """One training sequence, exactly as it was sampled. All arrays have shape `[T]`."""

    token_ids: NDArray[np.int32]
    """Prompt and completion ids, in order."""
    loss_mask: NDArray[np.uint8]
    """1 for sampled tokens, 0 for everything else."""
    logprobs: NDArray[np.float32]
    """Log-probability of each sampled token under the distribution it was sampled from; 0 where the mask is 0."""
    version_spans: tuple[VersionSpan, ...]
    """Which version sampled which tokens; covers exactly the tokens whose mask is 1."""


MAX_ABS_REWARD = 1e6
"""Largest reward in size: beyond it float32 has no room left for the differences that an advantage is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the reward service said of a trajectory."""

    reward: float
    """The number that enters the advantage; within `MAX_ABS_REWARD` of 0."""
    parts: dict[str, float]
    """Named components of the reward."""
    scorer: str
    """Which scorer."""
    scorer_version: str
    """Its version, so that a later change of rules can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A named failure of an issued member."""

    reason: FailureReason
    """What kind."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One finished attempt at a task."""

    key: MemberKey
    """Which trajectory."""
    lease_id: LeaseId
    """The lease it was produced under."""
    replica_id: ReplicaId
    """Who produced it."""
    sequence: int
    """The task's sequence number."""
    rows: tuple[TokenRow, ...]
    """One row, or several when the history was rewritten."""
    completion: str
    """The last assistant text, for people and scorers."""
    end_reason: EndReason
    """Why it ended."""
    score: Score
    """Its score."""
    oldest_version: int
    """Smallest policy version among its sampled tokens."""
    newest_version: int
    """Largest policy version among its sampled tokens."""
    traceparent: str
    """W3C trace context of its root span."""
    start_time: float
    """When the agent loop began, seconds since the epoch, by the replica's clock."""
    end_time: float
    """When it was scored, seconds since the epoch, by the replica's clock."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Timings and counts of the attempt, e.g. `generate_seconds`, `reward_seconds`."""

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens the model sampled, over all rows."""
        return sum(int(row.loss_mask.sum()) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The trajectories of one task that a batch lease hands out."""

    task_id: TaskId
    """The task."""
    attempt: int
    """Its attempt."""
    sequence: int
    """The task's sequence number."""
    group_size: int
    """Members wanted; the list may be shorter when members failed for good."""
    oldest_version: int
    """Smallest version among the sampled tokens of all members."""
    trajectories: tuple[Trajectory, ...]
    """Members in order of their index."""
    put_times: tuple[float, ...]
    """When each member was put, seconds since the epoch, by the Redis server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What a commit says of one group."""

    task_id: TaskId
    """The task."""
    attempt: int
    """The attempt that was leased."""
    outcome: GroupOutcome
    """Where it ended."""
    drop_reason: DropReason | None = None
    """Set exactly when the outcome is `dropped`."""
    sequence: int | None = None
    """Its sequence number; lets the queue account for a training group that its store lost meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a policy version."""

    name: str
    """Name in the model's state dict."""
    dtype: str
    """`float32`, `bfloat16`, `float16`, or an integer type by its torch name."""
    shape: tuple[int, ...]
    """Dimensions."""
    offset: int
    """First byte in the version's byte stream."""
    num_bytes: int
    """Bytes it takes there."""
    digest: str
    """Hex digest of those bytes (BLAKE2b, 16 bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a policy version consists of."""

    run_id: RunId
    """The run."""
    epoch: int
    """Epoch of the trainer that assigned it; an older epoch than known is refused."""
    version: int
    """The policy version."""
    tensors: tuple[TensorSpec, ...]
    """In stream order, without holes."""
    tied: dict[str, str]
    """Names that share another tensor's storage, mapped to the one that is sent."""
    total_bytes: int
    """Length of the byte stream."""
    digest: str
    """Digest over all tensor digests in order; names the version's exact content."""
    traceparent: str
    """W3C trace context of the `policy.publish` span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPiece:
    """A piece of a completion that is streamed to whoever asked a replica for it."""

    token_ids: tuple[int, ...]
    """Sampled ids of this piece."""
    logprobs: tuple[float, ...]
    """Log-probability of each of them."""
    policy_version: int
    """Policy version that sampled this piece."""
    text: str
    """Text of the whole completion on the last piece, else empty."""
    end_reason: EndReason | None
    """Why it ended; None but on the last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A replica's report that it serves a policy version."""

    replica_id: ReplicaId
    """Who."""
    version: int
    """The version that it now serves."""
    digest: str
    """Digest of what it serves, computed from the bytes it received."""
    pause_seconds: float
    """Time in which generation stood still for the switch."""
    total_seconds: float
    """Time from the news to the switch, transfer included."""
    received_bytes: int
    """Bytes received for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """What a replica says of itself in a heartbeat."""

    replica_id: ReplicaId
    """Who."""
    service: str
    """`rollouter` or `trainer`."""
    policy_version: int
    """Version it serves (rollouter) or assigned last (trainer); -1 before the first."""
    policy_digest: str
    """Digest of what it serves; empty before the first."""
    busy_slots: int
    """Members in flight."""
    max_slots: int
    """Members it can hold."""
    address: str
    """Where its own gRPC service listens."""
    state: str
    """`starting`, `serving`, `draining`, `left`; or `validating`, `waiting`, `training`, `publishing`, `finished`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Named gauges, e.g. `tokens_per_second`, `adoption_pause_seconds`, `wait_share`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLedger:
    """Where every task attempt of a partition ended.

    fed = consumed + filtered + dropped + dead_lettered + open + lost.
    """

    fed: int
    """Task attempts issued: enqueued tasks plus refills."""
    refilled: int
    """How many of `fed` are second or later attempts."""
    consumed: int
    """Committed as consumed."""
    filtered: int
    """Committed as filtered."""
    dropped: dict[str, int]
    """By `DropReason`."""
    dead_lettered: int
    """Every member failed for good."""
    open: int
    """Still somewhere in the queue, counted from the queue itself and not from counters."""

    @property
    def lost(self) -> int:
        """What no column accounts for; 0 or a defect."""
        ended = self.consumed + self.filtered + sum(self.dropped.values()) + self.dead_lettered
        return self.fed - ended - self.open


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryLedger:
    """Where every issued member ended.

    issued = put + duplicate + lapsed + failed + released + in_flight + lost.
    """

    issued: int
    """Leases given."""
    put: int
    """Accepted into their group."""
    duplicate: int
    """Finished by a second holder after another one's result was accepted, or after the group had ended."""
    lapsed: int
    """Leases that ran out and were not answered since."""
    failed: dict[str, int]
    """By `FailureReason`."""
    released: dict[str, int]
    """By `ReleaseReason`."""
    in_flight: int
    """Live leases, counted from the queue itself."""

    @property
    def lost(self) -> int:
        """What no column accounts for; 0 or a defect."""
        ended = self.put + self.duplicate + self.lapsed + sum(self.failed.values()) + sum(self.released.values())
        return self.issued - ended - self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The account of one partition of a run."""

    partition: Partition
    """Which stream."""
    tasks: TaskLedger
    """Tasks."""
    trajectories: TrajectoryLedger
    """Members."""
    trained_twice: int
    """(task, attempt, member) found in a second committed batch; 0 or a defect."""
    commits: int
    """Commits so far."""
    first_open_sequence: int = 0
    """Every sequence number below it has ended, whatever the way."""
    ended_sequences: tuple[int, ...] = ()
    """Numbers at or above it that have ended too, in order."""

    @property
    def lost(self) -> int:
        """Sum of what neither table accounts for."""
        return abs(self.tasks.lost) + abs(self.trajectories.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """One completion that is to be scored."""

    run_id: RunId
    """The run."""
    trajectory_id: str
    """Client-chosen id: the lease id of the trajectory; the same id with other content is refused."""
    messages: tuple[Message, ...]
    """The prompt."""
    completion: str
    """The text to score."""
    scoring: ScoringSpec
    """What it is scored against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerInfo:
    """One scorer that a reward service offers."""

    name: str
    """Name as used in `ScoringSpec.scorer`."""
    version: str
    """Stored on every score."""
    description: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A task that was given up, since every member of its group failed for good."""

    partition: Partition
    """Which stream."""
    task_id: TaskId
    """The task."""
    attempt: int
    """Its attempt."""
    sequence: int
    """Its sequence number."""
    time: float
    """When it was given up, seconds since the epoch, by the Redis server's clock."""
    reasons: tuple[str, ...]
    """Of each member the newest `FailureReason`, or `lapsed`."""


class OnStale(StrEnum):
    """What becomes of a group that is too old when the trainer wants it."""

    REFILL = "refill"
    """It is dropped and the same task is issued again as the next attempt, in one atomic step."""
    DROP = "drop"
    """It is dropped."""
    WAIT = "wait"
    """No group becomes too old while its leases are renewed: a batch is held until enough of the unfinished groups that
    could be used no later are ready. What is too old all the same, after a lapsed lease or a crash, is refilled."""


class WhenFull(StrEnum):
    """What happens when a bound of the queue is reached."""

    BLOCK = "block"
    """No member of a new group is leased until there is room; groups that were begun may finish."""
    DROP_OLDEST = "drop_oldest"
    """The ready group with the lowest sequence number is dropped."""


class PutOutcome(StrEnum):
    """What became of a put."""

    ACCEPTED = "accepted"
    """It is in its group (also when this very put came before)."""
    DUPLICATE = "duplicate"
    """Another holder's result was accepted before, or the group has ended."""
    REISSUED = "reissued"
    """The failure was noted and the member is issued again."""
    GIVEN_UP = "given_up"
    """The failure was noted and the member is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Rules of a run, fixed at its creation."""

    max_staleness: int
    """Largest age, in versions, of a token in an optimiser step, >= 0."""
    groups_per_version: int
    """Groups consumed between two policy versions, >= 1."""
    on_stale: OnStale
    """What becomes of a group that is too old."""
    max_member_issues: int
    """Failed or lapsed issues after which a member is given up, >= 1."""
    lease_seconds: float
    """Time after which an unrenewed lease lapses, > 0."""
    max_queue_size: int
    """Ready groups held at most, >= 1; a batch that the trainer waits for may be larger."""
    max_queue_bytes: int
    """Bytes of put trajectories that wait for the trainer at most, >= 1; the same exception."""
    when_full: WhenFull
    """What happens when a bound is reached."""
    min_group_members: int
    """Members that must be scored for a training group to be used, >= 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands when a trainer takes it over."""

    epoch: int
    """Epoch of the caller; every further call carries it. Grows with each takeover, also when the run was lost."""
    commit_number: int
    """Number of the newest applied commit; 0 before the first."""
    policy_version: int
    """Newest registered policy version; -1 before the first."""
    replica_version: int
    """Largest policy version that a replica reported; -1 when none did."""
    created: bool
    """Whether the run did not exist before."""
    finished: bool
    """Whether the run has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs. Of a run that is not `readable` only id and format are known."""

    run_id: RunId
    """The run."""
    format: str
    """Format of its state; `none` when its writer knew of no formats."""
    readable: bool
    """Whether this queue reads that format."""
    finished: bool = False
    """Whether it has ended."""
    epoch: int = 0
    """Its epoch."""
    commit_number: int = 0
    """Number of the newest applied commit."""
    policy_version: int = -1
    """Newest registered policy version; -1 before the first."""
    payload_bytes: int = 0
    """Bytes of put trajectories held, those of leased groups too."""
    open_tasks: int = 0
    """Tasks in the queue, of all partitions, leased ones too."""
    create_time: float = 0.0
    """When it was created, seconds since the epoch, by the Redis server's clock."""
    trainer_idle_seconds: float = 0.0
    """Time since the last call of its trainer, known to a second."""
    idle_seconds: float = 0.0
    """Time since the last call of its trainer or heartbeat of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What became of the deletion of a run."""

    num_keys: int
    """Keys that this call deleted; 0 when there was no such run."""
    complete: bool
    """Whether nothing is left; else the queue goes on by itself, and no caller finds the run in the meantime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """What became of fed tasks."""

    num_accepted: int
    """How many, counted from the first, are in the queue now or have ended there."""
    remaining_capacity: int
    """How many more would be admitted now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTasks:
    """What a rollouter got."""

    assignments: tuple[Assignment, ...]
    """The leased members; empty when none came in time."""
    run_finished: bool
    """Whether the run has finished and the replica may stop."""
    wanted_version: int | None
    """Oldest version that a waiting task may be sampled with, when this replica is too old for it; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMember:
    """A leased member that produced no trajectory."""

    key: MemberKey
    """Which trajectory."""
    lease_id: LeaseId
    """The lease it was tried under."""
    failure: Failure
    """Why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeasedBatch:
    """What the trainer got."""

    groups: tuple[Group, ...]
    """Whole groups in order of sequence; empty when not enough were ready in time."""
    end_of_data: bool
    """No further group will ever be ready after these: the data has ended and nothing is open."""
    commit_number: int
    """Number of the newest applied commit."""
    num_ready: int
    """Groups that are ready and were not handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """Depths of one partition."""

    partition: Partition
    """Which stream."""
    pending_members: int
    """Members that wait for a rollouter."""
    in_flight_members: int
    """Live leases."""
    open_groups: int
    """Groups that are neither ready nor leased."""
    ready_groups: int
    """Groups that wait for the trainer."""
    leased_groups: int
    """Groups leased by the trainer and not committed."""
    payload_bytes: int
    """Bytes of put trajectories held."""
    held_for_groups: int
    """Unfinished groups that the trainer's batch is held for; 0 unless `OnStale.WAIT` holds one."""
    queued_bytes: int = 0
    """How many of `payload_bytes` are of groups that wait or are unfinished; `max_queue_bytes` bounds these."""
    data_ended: bool = False
    """Whether no further task will be fed."""
    ask_age_seconds: float | None = None
    """Time since the trainer last asked for groups, by the Redis server's clock; None before it did."""
    commit_age_seconds: float | None = None
    """Time since the newest commit, by the same clock; None before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """A replica's newest heartbeat."""

    status: ReplicaStatus
    """What it said."""
    age_seconds: float
    """How long ago, by the Redis server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Depths, versions and replicas of a run."""

    partitions: tuple[PartitionStats, ...]
    """One entry per partition."""
    policy_version: int
    """Newest registered policy version; -1 before the first."""
    epoch: int
    """Epoch of the run."""
    commit_number: int
    """Number of the newest applied commit."""
    replicas: tuple[ReplicaReport, ...]
    """Replicas heard of within the last minute, and of each service the one heard of last, if within the hour."""
    run_finished: bool
    """Whether the run has ended."""
    settings: RunSettings | None = None
    """Rules of the run; None when the queue did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """What a trainer says of itself when it is asked."""

    run_id: RunId
    """The run."""
    epoch: int
    """Epoch of this trainer; 0 before it took the run over."""
    step: int
    """Optimiser steps done."""
    total_steps: int
    """Optimiser steps wanted."""
    policy_version: int
    """Newest assigned policy version; -1 before the first."""
    state: str
    """`starting`, `validating`, `waiting`, `training`, `publishing`, `finished`, `stopped` or `failed`."""
    metrics: dict[str, float]
    """Figures of the newest step by name."""
