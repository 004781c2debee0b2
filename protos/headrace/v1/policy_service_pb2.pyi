from headrace.v1 import policy_pb2 as _policy_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetManifestRequest(_message.Message):
    __slots__ = ("run_id", "version")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: _policy_pb2.Manifest
    def __init__(self, manifest: _Optional[_Union[_policy_pb2.Manifest, _Mapping]] = ...) -> None: ...

class WatchVersionsRequest(_message.Message):
    __slots__ = ("run_id", "replica_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica_id: str
    def __init__(self, run_id: _Optional[str] = ..., replica_id: _Optional[str] = ...) -> None: ...

class WatchVersionsResponse(_message.Message):
    __slots__ = ("version", "epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class StreamShardsRequest(_message.Message):
    __slots__ = ("run_id", "version", "offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    offset: int
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class StreamShardsResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReportAdoptionRequest(_message.Message):
    __slots__ = ("run_id", "replica_id", "version", "digest", "pause_seconds", "total_seconds", "received_bytes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica_id: str
    version: int
    digest: str
    pause_seconds: float
    total_seconds: float
    received_bytes: int
    def __init__(self, run_id: _Optional[str] = ..., replica_id: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., pause_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class ReportAdoptionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
