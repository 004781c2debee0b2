"""The gRPC face of the policy store: translates, decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from headrace.v1 import policy_service_pb2

from services.common.convert.policy import chunk_to_wire, manifest_to_proto
from services.common.types import Adoption, ReplicaId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.common.weights import Chunk
    from services.trainer.policy_store import PolicyStore

    _Context = grpc.aio.ServicerContext[Any, Any]

_SERVICE = "headrace.v1.PolicyService"


class PolicyServicer:
    """Serves `PolicyService` from a store."""

    def __init__(self, store: PolicyStore) -> None:
        """Serve what `store` holds."""
        self._store = store

    async def get_manifest(
        self, request: policy_service_pb2.GetManifestRequest, _context: _Context
    ) -> policy_service_pb2.GetManifestResponse:
        """Return the manifest of one version."""
        version = request.version if request.HasField("version") else None
        manifest = self._store.manifest(request.run_id, version)
        return policy_service_pb2.GetManifestResponse(manifest=manifest_to_proto(manifest))

    async def watch_versions(
        self, request: policy_service_pb2.WatchVersionsRequest, _context: _Context
    ) -> AsyncIterator[policy_service_pb2.WatchVersionsResponse]:
        """Stream the newest version now and at each change."""
        async for manifest in self._store.watch(request.run_id):
            yield policy_service_pb2.WatchVersionsResponse(version=manifest.version, epoch=manifest.epoch)

    async def stream_shards(
        self, request: policy_service_pb2.StreamShardsRequest, _context: _Context
    ) -> AsyncIterator[Chunk]:
        """Stream a version's bytes; each chunk is copied once, when it is framed."""
        for chunk in self._store.chunks(request.run_id, request.version, offset=request.offset):
            yield chunk

    async def report_adoption(
        self, request: policy_service_pb2.ReportAdoptionRequest, _context: _Context
    ) -> policy_service_pb2.ReportAdoptionResponse:
        """Note that a replica serves a version."""
        adoption = Adoption(
            replica_id=ReplicaId(request.replica_id),
            version=request.version,
            digest=request.digest,
            pause_seconds=request.pause_seconds,
            total_seconds=request.total_seconds,
            received_bytes=request.received_bytes,
        )
        self._store.report_adoption(request.run_id, adoption)
        return policy_service_pb2.ReportAdoptionResponse()


def add_policy_servicer(servicer: PolicyServicer, server: grpc.aio.Server) -> None:
    """Register the service. Not the generated function, since chunks are framed without a protobuf object."""
    messages = policy_service_pb2
    handlers = {
        "GetManifest": grpc.unary_unary_rpc_method_handler(
            servicer.get_manifest,
            request_deserializer=messages.GetManifestRequest.FromString,
            response_serializer=messages.GetManifestResponse.SerializeToString,
        ),
        "WatchVersions": grpc.unary_stream_rpc_method_handler(
            servicer.watch_versions,
            request_deserializer=messages.WatchVersionsRequest.FromString,
            response_serializer=messages.WatchVersionsResponse.SerializeToString,
        ),
        "StreamShards": grpc.unary_stream_rpc_method_handler(
            servicer.stream_shards,
            request_deserializer=messages.StreamShardsRequest.FromString,
            response_serializer=chunk_to_wire,
        ),
        "ReportAdoption": grpc.unary_unary_rpc_method_handler(
            servicer.report_adoption,
            request_deserializer=messages.ReportAdoptionRequest.FromString,
            response_serializer=messages.ReportAdoptionResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
