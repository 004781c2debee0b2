from headrace.v1 import task_pb2 as _task_pb2
from headrace.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("messages", "sampling", "seed")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_task_pb2.Message]
    sampling: _task_pb2.SamplingParams
    seed: int
    def __init__(self, messages: _Optional[_Iterable[_Union[_task_pb2.Message, _Mapping]]] = ..., sampling: _Optional[_Union[_task_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token_ids", "logprobs", "policy_version", "text", "end_reason")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    policy_version: int
    text: str
    end_reason: _trajectory_pb2.EndReason
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., policy_version: _Optional[int] = ..., text: _Optional[str] = ..., end_reason: _Optional[_Union[_trajectory_pb2.EndReason, str]] = ...) -> None: ...

class RollouterServiceGetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollouterServiceGetStatusResponse(_message.Message):
    __slots__ = ("replica_id", "policy_version", "policy_digest", "busy_slots", "max_slots", "state")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUSY_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    policy_version: int
    policy_digest: str
    busy_slots: int
    max_slots: int
    state: str
    def __init__(self, replica_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., policy_digest: _Optional[str] = ..., busy_slots: _Optional[int] = ..., max_slots: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
