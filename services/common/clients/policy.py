"""Typed client of `PolicyService`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.v1 import policy_service_pb2, policy_service_pb2_grpc

from services.common.convert.policy import chunk_from_wire, manifest_from_proto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from services.common.types import Adoption, Manifest, ReplicaId, RunId

_STREAM_SHARDS = "/headrace.v1.PolicyService/StreamShards"
_CALL_SECONDS = 10.0
# A stream that lasts is reopened now and then; a dead peer is noticed earlier, by keepalive.
_WATCH_SECONDS = 3600.0
_STREAM_SECONDS = 600.0


class PolicyClient:
    """Fetches policy versions of one run.

    Example:
        client = PolicyClient(channel, run_id)
        manifest = await client.get_manifest()
        async for offset, data in client.stream_shards(manifest.version, offset=0):
            receiver.feed(offset, data)
    """

    def __init__(self, channel: grpc.aio.Channel, run_id: RunId) -> None:
        """Use a channel of `services.common.rpc.open_channel`; the caller closes it."""
        self._run_id = run_id
        self._stub: Any = policy_service_pb2_grpc.PolicyServiceStub(channel)  # type: ignore[no-untyped-call]
        self._stream_shards = channel.unary_stream(
            _STREAM_SHARDS,
            request_serializer=policy_service_pb2.StreamShardsRequest.SerializeToString,
            response_deserializer=chunk_from_wire,
        )

    async def get_manifest(self, version: int | None = None) -> Manifest:
        """Return the manifest of a version; None means the newest.

        Raises:
            NotFoundError: the version is not held (any longer).
        """
        request = policy_service_pb2.GetManifestRequest(run_id=self._run_id, version=version)
        response = await self._stub.GetManifest(request, timeout=_CALL_SECONDS)
        return manifest_from_proto(response.manifest)

    async def watch_versions(self, replica_id: ReplicaId) -> AsyncIterator[tuple[int, int]]:
        """Yield (version, epoch) of the newest version now and at each change, until the trainer stops."""
        request = policy_service_pb2.WatchVersionsRequest(run_id=self._run_id, replica_id=replica_id)
        async for response in self._stub.WatchVersions(request, timeout=_WATCH_SECONDS):
            yield response.version, response.epoch

    async def stream_shards(self, version: int, *, offset: int) -> AsyncIterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) of a version from `offset` on.

        Raises:
            NotFoundError: the version is not held (any longer).
        """
        request = policy_service_pb2.StreamShardsRequest(run_id=self._run_id, version=version, offset=offset)
        async for chunk in self._stream_shards(request, timeout=_STREAM_SECONDS):
            yield chunk

    async def report_adoption(self, adoption: Adoption) -> None:
        """Report that a replica serves a version.

        Raises:
            NotFoundError: this trainer did not publish the version.
            CorruptDataError: the digest is not the one published.
        """
        request = policy_service_pb2.ReportAdoptionRequest(
            run_id=self._run_id,
            replica_id=adoption.replica_id,
            version=adoption.version,
            digest=adoption.digest,
            pause_seconds=adoption.pause_seconds,
            total_seconds=adoption.total_seconds,
            received_bytes=adoption.received_bytes,
        )
        await self._stub.ReportAdoption(request, timeout=_CALL_SECONDS)
