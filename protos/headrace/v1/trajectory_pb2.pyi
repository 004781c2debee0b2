import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from headrace.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_STOP: _ClassVar[EndReason]
    END_REASON_LENGTH: _ClassVar[EndReason]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_ENGINE_ERROR: _ClassVar[FailureReason]
    FAILURE_REASON_REWARD_ERROR: _ClassVar[FailureReason]
    FAILURE_REASON_REWARD_TIMEOUT: _ClassVar[FailureReason]
    FAILURE_REASON_REWARD_UNAVAILABLE: _ClassVar[FailureReason]
    FAILURE_REASON_PROMPT_TOO_LONG: _ClassVar[FailureReason]
    FAILURE_REASON_AGENT_ERROR: _ClassVar[FailureReason]
END_REASON_UNSPECIFIED: EndReason
END_REASON_STOP: EndReason
END_REASON_LENGTH: EndReason
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_ENGINE_ERROR: FailureReason
FAILURE_REASON_REWARD_ERROR: FailureReason
FAILURE_REASON_REWARD_TIMEOUT: FailureReason
FAILURE_REASON_REWARD_UNAVAILABLE: FailureReason
FAILURE_REASON_PROMPT_TOO_LONG: FailureReason
FAILURE_REASON_AGENT_ERROR: FailureReason

class VersionSpan(_message.Message):
    __slots__ = ("start", "end", "version")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class TokenRow(_message.Message):
    __slots__ = ("token_ids", "loss_mask", "logprobs", "version_spans")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSION_SPANS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    version_spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    def __init__(self, token_ids: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., version_spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("reward", "parts", "scorer", "scorer_version")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REWARD_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SCORER_VERSION_FIELD_NUMBER: _ClassVar[int]
    reward: float
    parts: _containers.ScalarMap[str, float]
    scorer: str
    scorer_version: str
    def __init__(self, reward: _Optional[float] = ..., parts: _Optional[_Mapping[str, float]] = ..., scorer: _Optional[str] = ..., scorer_version: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: FailureReason
    message: str
    def __init__(self, reason: _Optional[_Union[FailureReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("key", "lease_id", "replica_id", "sequence", "rows", "completion", "end_reason", "score", "oldest_version", "newest_version", "traceparent", "start_time", "end_time", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    key: _task_pb2.MemberKey
    lease_id: str
    replica_id: str
    sequence: int
    rows: _containers.RepeatedCompositeFieldContainer[TokenRow]
    completion: str
    end_reason: EndReason
    score: Score
    oldest_version: int
    newest_version: int
    traceparent: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, key: _Optional[_Union[_task_pb2.MemberKey, _Mapping]] = ..., lease_id: _Optional[str] = ..., replica_id: _Optional[str] = ..., sequence: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[TokenRow, _Mapping]]] = ..., completion: _Optional[str] = ..., end_reason: _Optional[_Union[EndReason, str]] = ..., score: _Optional[_Union[Score, _Mapping]] = ..., oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., traceparent: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...
