"""Memory for a version's weights as torch tensors; imported only for engines that have weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.tensors import allocate, byte_view
from services.rollouter.policy_sync import WeightMemory

if TYPE_CHECKING:
    from services.common.types import Manifest


def tensor_memory(manifest: Manifest) -> WeightMemory:
    """Make room for every tensor that is sent."""
    tensors = allocate(manifest)
    return WeightMemory(tensors=tensors, buffers={name: byte_view(tensor) for name, tensor in tensors.items()})
