"""Manifests of policy versions."""

from __future__ import annotations

from headrace.v1 import policy_pb2

from services.common.types import Manifest, RunId, TensorSpec


def manifest_to_proto(manifest: Manifest) -> policy_pb2.Manifest:
    """Return the wire form of a manifest."""
    return policy_pb2.Manifest(
        run_id=manifest.run_id,
        epoch=manifest.epoch,
        version=manifest.version,
        tensors=[
            policy_pb2.TensorSpec(
                name=spec.name,
                dtype=spec.dtype,
                shape=spec.shape,
                offset=spec.offset,
                num_bytes=spec.num_bytes,
                digest=spec.digest,
            )
            for spec in manifest.tensors
        ],
        tied=manifest.tied,
        total_bytes=manifest.total_bytes,
        digest=manifest.digest,
        traceparent=manifest.traceparent,
    )


def manifest_from_proto(wire: policy_pb2.Manifest) -> Manifest:
    """Return a manifest."""
    return Manifest(
        run_id=RunId(wire.run_id),
        epoch=wire.epoch,
        version=wire.version,
        tensors=tuple(
            TensorSpec(
                name=spec.name,
                dtype=spec.dtype,
                shape=tuple(spec.shape),
                offset=spec.offset,
                num_bytes=spec.num_bytes,
                digest=spec.digest,
            )
            for spec in wire.tensors
        ),
        tied=dict(wire.tied),
        total_bytes=wire.total_bytes,
        digest=wire.digest,
        traceparent=wire.traceparent,
    )
