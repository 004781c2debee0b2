"""Replaces all weights of a live model in microseconds, or none of them.

Owns the check that a set of tensors is exactly this model's, and the swap itself: preparing (conversion, alignment)
happens beside generation, the swap only redirects pointers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_ALIGNMENT_BYTES = 64
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedWeights:
    """Checked tensors that wait for the swap.

    Example: `WeightSwap(model).prepare(tensors).swap()`.
    """

    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(the model's parameter, its new content), in the parameter's own dtype and on its device."""

    def swap(self) -> list[torch.Tensor]:
        """Redirect every parameter to its new content.

        Returns:
            The old content. Giving hundreds of megabytes back to the system takes longer than the swap, so that is left
            to the caller; see `release`.
        """
        old = [target.data for target, _ in self.pairs]
        for target, source in self.pairs:
            target.data = source
        return old


def release(old: list[torch.Tensor]) -> None:
    """Give memory back, one tensor at a time, so that the decode thread gets its turn in between."""
    while old:
        old.pop()
        time.sleep(0)


class WeightSwap:
    """Knows which tensors a model consists of.

    Example: `WeightSwap(model).prepare({"model.norm.weight": norm, ...})`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Read the model's state dict; names that share one tensor are tied."""
        self._targets: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> PreparedWeights:
        """Check names and shapes, and convert what has another dtype or device.

        Args:
            tensors: by state-dict name, one name of each tied set. They are kept, not copied, where they fit as they
                are.

        Returns:
            The weights, ready to be swapped in.

        Raises:
            CorruptDataError: a name is unknown or missing, or a shape differs.
        """
        unknown = sorted(set(tensors) - set(self._targets))
        given = {id(self._targets[name]) for name in tensors if name in self._targets}
        missing = sorted(name for name, target in self._targets.items() if id(target) not in given)
        if unknown or missing:
            raise CorruptDataError(
                f"the weights have {len(unknown)} unknown names {unknown[:_NAMES_SHOWN]} and lack {len(missing)} names "
                f"{missing[:_NAMES_SHOWN]} of this model's {len(self._targets)}; is it the same model?"
            )
        for name, tensor in tensors.items():
            if tensor.shape != self._targets[name].shape:
                raise CorruptDataError(
                    f"{name} has shape {tuple(tensor.shape)}, this model's has {tuple(self._targets[name].shape)}; "
                    "is it the same model?"
                )
        return PreparedWeights(
            pairs=tuple((self._targets[name], _fit(tensor, self._targets[name])) for name, tensor in tensors.items())
        )


def _fit(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The tensor in the target's dtype, on its device, contiguous and aligned."""
    fitted = tensor.detach().to(device=target.device, dtype=target.dtype).contiguous()
    # Matrix kernels may round differently at other alignments, and two replicas must give the same bits.
    return fitted.clone() if fitted.data_ptr() % _ALIGNMENT_BYTES else fitted
