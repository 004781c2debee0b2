import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Partition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITION_UNSPECIFIED: _ClassVar[Partition]
    PARTITION_TRAIN: _ClassVar[Partition]
    PARTITION_VALIDATION: _ClassVar[Partition]
PARTITION_UNSPECIFIED: Partition
PARTITION_TRAIN: Partition
PARTITION_VALIDATION: Partition

class Message(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoringSpec(_message.Message):
    __slots__ = ("answer", "scorer", "metadata_json")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    answer: str
    scorer: str
    metadata_json: str
    def __init__(self, answer: _Optional[str] = ..., scorer: _Optional[str] = ..., metadata_json: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "partition", "sequence", "messages", "group_size", "sampling", "scoring", "seed")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    partition: Partition
    sequence: int
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    group_size: int
    sampling: SamplingParams
    scoring: ScoringSpec
    seed: int
    def __init__(self, task_id: _Optional[str] = ..., partition: _Optional[_Union[Partition, str]] = ..., sequence: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., group_size: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., scoring: _Optional[_Union[ScoringSpec, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class MemberKey(_message.Message):
    __slots__ = ("partition", "task_id", "attempt", "member")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    task_id: str
    attempt: int
    member: int
    def __init__(self, partition: _Optional[_Union[Partition, str]] = ..., task_id: _Optional[str] = ..., attempt: _Optional[int] = ..., member: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("lease_id", "key", "issue", "task", "min_version", "lease_seconds", "traceparent", "enqueue_time", "issue_time")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ISSUE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    ISSUE_TIME_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    key: MemberKey
    issue: int
    task: Task
    min_version: int
    lease_seconds: float
    traceparent: str
    enqueue_time: _timestamp_pb2.Timestamp
    issue_time: _timestamp_pb2.Timestamp
    def __init__(self, lease_id: _Optional[str] = ..., key: _Optional[_Union[MemberKey, _Mapping]] = ..., issue: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., min_version: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., traceparent: _Optional[str] = ..., enqueue_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., issue_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
