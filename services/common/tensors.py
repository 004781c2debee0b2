"""Torch tensors as the byte stream of a policy version, and back. The only shared module that loads torch.

Tensors that share their storage (tied embeddings) are sent once; the manifest's `tied` map names the others.

Example:
    weights = backend.snapshot()
    manifest = build_manifest(weights.tensors, tied=weights.tied, run_id=run_id, epoch=1, version=3)
    store.publish(manifest, weights.tensors)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from services.common.errors import CorruptDataError
from services.common.types import Manifest, RunId, TensorSpec
from services.common.weights import digest_bytes, digest_version

if TYPE_CHECKING:
    from collections.abc import Mapping


def build_manifest(
    tensors: Mapping[str, torch.Tensor],
    *,
    run_id: RunId,
    epoch: int,
    version: int,
    tied: Mapping[str, str] | None = None,
    traceparent: str = "",
) -> Manifest:
    """Describe tensors as one version; hashes every byte, so it belongs into a thread.

    Args:
        tensors: contiguous CPU tensors by name that nobody writes to any more.
        run_id: the run.
        epoch: epoch of the trainer that assigned the version.
        version: the policy version.
        tied: names that are left out of `tensors` since they are another tensor; shared storage is found without it.
        traceparent: context of the `policy.publish` span.
    """
    first: dict[tuple[object, ...], str] = {}
    names = dict(tied or {})
    specs: list[TensorSpec] = []
    offset = 0
    for name, tensor in tensors.items():
        owner = first.setdefault(_identity(tensor), name)
        if owner != name:
            names[name] = owner
            continue
        view = byte_view(tensor)
        spec = TensorSpec(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offset=offset,
            num_bytes=len(view),
            digest=digest_bytes(view),
        )
        specs.append(spec)
        offset += spec.num_bytes
    return Manifest(
        run_id=run_id,
        epoch=epoch,
        version=version,
        tensors=tuple(specs),
        tied=names,
        total_bytes=offset,
        digest=digest_version(specs, names),
        traceparent=traceparent,
    )


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's own bytes, of whatever type it is; the view keeps the memory alive.

    Raises:
        ValueError: the tensor is not contiguous or not in CPU memory.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"tensor of shape {tuple(tensor.shape)} on {tensor.device} is not contiguous CPU memory")
    if tensor.numel() == 0:
        return memoryview(b"")
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def stream_buffers(manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> tuple[memoryview, ...]:
    """Return the stream of a version as views, in the manifest's order."""
    return tuple(byte_view(tensors[spec.name]) for spec in manifest.tensors)


def allocate(manifest: Manifest) -> dict[str, torch.Tensor]:
    """Make memory for a version that is to be received, one tensor per sent name.

    Raises:
        CorruptDataError: a type is unknown, or shape and length disagree.
    """
    out: dict[str, torch.Tensor] = {}
    for spec in manifest.tensors:
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CorruptDataError(f"version {manifest.version}: tensor {spec.name} has unknown type {spec.dtype!r}")
        expected = math.prod(spec.shape) * dtype.itemsize
        if expected != spec.num_bytes:
            raise CorruptDataError(
                f"version {manifest.version}: tensor {spec.name} of type {spec.dtype} and shape {spec.shape} has "
                f"{spec.num_bytes} bytes instead of {expected}",
                version=str(manifest.version),
                tensor=spec.name,
            )
        out[spec.name] = torch.empty(spec.shape, dtype=dtype)
    return out


def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory seen the same way; empty ones share nothing."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
