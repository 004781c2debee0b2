"""The backend for one process: PyTorch on the CPU or one GPU, float32 master weights, AdamW.

Guarantees on the CPU that the same weights and the same batches give the same bits (the thread count is fixed), that a
resumed backend continues bit for bit, and that a step that is not finite leaves weights and optimiser as they were.
The model is in evaluation mode throughout: dropout would make its log-probs incomparable with those that were sampled.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from services.common.errors import ConfigError, InternalError, InvalidInputError
from services.common.model_folder import load_model_folder
from services.trainer.backend.port import BackendState, PolicyWeights, StepMetrics, TrainingRow
from services.trainer.batching import MicroBatch, check_rows, collate, plan_micro_batches, sampled_logprobs
from services.trainer.export import export_model
from services.trainer.loss import LossTerms, ppo_clip_loss
from services.trainer.schedule import learning_rate_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from services.common.types import TokenRow

OPTIMIZER_SLOTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """What an optimiser step needs to know besides its batch.

    Example: `LocalBackend(folder, LearnerSettings(learning_rate=1e-3, total_steps=80))`.
    """

    learning_rate: float
    """Full learning rate."""
    schedule: str = "constant"
    """`constant`, `linear` or `cosine`."""
    warmup_steps: int = 0
    """Optimiser steps of linear warm-up."""
    total_steps: int = 0
    """Optimiser steps of the whole run; where a falling schedule ends."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.999
    """AdamW's decay of the second moment."""
    max_grad_norm: float = 1.0
    """Global gradient norm is clipped to this; 0 turns clipping off."""
    clip_low: float = 0.2
    """How far a ratio may fall below 1 before it is clipped."""
    clip_high: float = 0.2
    """How far a ratio may rise above 1 before it is clipped."""
    temperature: float = 1.0
    """Temperature that the rollouts are sampled at, > 0."""
    max_tokens_per_micro_batch: int = 8192
    """Bound of padded tokens in one forward pass."""
    num_threads: int = 1
    """CPU threads of PyTorch in this process; part of what makes results repeatable."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    trust_remote_code: bool = False
    """Lets the model folder run its own Python code."""


class LocalBackend:
    """`TrainerBackend` in this process.

    Example: `LocalBackend(Path("model"), LearnerSettings(learning_rate=1e-3)).step(rows)`.
    """

    def __init__(self, folder: Path, settings: LearnerSettings) -> None:
        """Load the model and make a fresh optimiser.

        Args:
            folder: a Hugging Face folder.
            settings: the optimiser's and the loss's numbers.

        Raises:
            ConfigError: the folder or a setting is wrong.
        """
        if settings.temperature <= 0:
            raise ConfigError(
                f"sampling temperature is {settings.temperature}; training needs log-probs, so it must be above 0"
            )
        torch.set_num_threads(settings.num_threads)
        self._settings = settings
        self._device = torch.device(settings.device)
        loaded = load_model_folder(folder, trust_remote_code=settings.trust_remote_code)
        self._tokenizer = loaded.tokenizer
        self._model = loaded.model.to(self._device, torch.float32).eval()
        self._vocab_size = self._model.get_input_embeddings().weight.shape[0]
        self._max_context = loaded.max_context_tokens
        self._keeps_logits = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self._steps_done = 0

    @property
    def steps_done(self) -> int:
        """Optimiser steps so far, restored by `load_state`."""
        return self._steps_done

    def step(self, batch: Sequence[TrainingRow]) -> StepMetrics:
        """Run one optimiser step over the whole batch; see `TrainerBackend.step`."""
        num_tokens = self._check([item.row for item in batch])
        for index, item in enumerate(batch):
            if not math.isfinite(item.advantage):
                raise InvalidInputError(f"row {index} has advantage {item.advantage}; advantages must be finite")
        settings = self._settings
        self._optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        num_micro_batches = 0
        for micro in self._micro_batches(batch):
            terms, entropy = self._loss(micro, num_tokens)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            _accumulate(totals, terms, entropy)
            num_micro_batches += 1
        bound = settings.max_grad_norm or float("inf")
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), bound))
        loss = float(totals["loss"])
        if not (math.isfinite(grad_norm) and math.isfinite(loss)):
            self._optimizer.zero_grad(set_to_none=True)
            raise InternalError(
                f"step {self._steps_done}: loss {loss}, gradient norm {grad_norm}; not finite, no weight was changed"
            )
        learning_rate = learning_rate_at(
            self._steps_done,
            base=settings.learning_rate,
            schedule=settings.schedule,
            warmup_steps=settings.warmup_steps,
            total_steps=settings.total_steps,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._steps_done += 1
        return StepMetrics(
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            clip_fraction=float(totals["clipped"]) / num_tokens,
            approx_kl=float(totals["kl"]) / num_tokens,
            ratio_mean=float(totals["ratio"]) / num_tokens,
            ratio_max=float(totals["ratio_max"]),
            entropy=float(totals["entropy"]) / num_tokens,
            num_rows=len(batch),
            num_tokens=num_tokens,
            num_micro_batches=num_micro_batches,
        )

    def logprobs(self, rows: Sequence[TokenRow]) -> list[NDArray[np.float32]]:
        """Compute log-probs of the sampled tokens; see `TrainerBackend.logprobs`."""
        self._check(rows)
        batch = [TrainingRow(row=row, advantage=0.0) for row in rows]
        found: dict[int, NDArray[np.float32]] = {}
        with torch.no_grad():
            for micro in self._micro_batches(batch):
                values = self._forward(micro)[0].cpu().numpy()
                for position, index in enumerate(micro.indices):
                    found[index] = values[position, : len(rows[index].token_ids)].copy()
        return [found[index] for index in range(len(rows))]

    def snapshot(self) -> PolicyWeights:
        """Copy the current weights; see `TrainerBackend.snapshot`."""
        tensors, tied = self._named_tensors()
        return PolicyWeights(tensors={name: _copy(tensor) for name, tensor in tensors.items()}, tied=tied)

    def state(self) -> BackendState:
        """Copy everything that an exact resume needs; see `TrainerBackend.state`."""
        tensors = {f"model.{name}": tensor for name, tensor in self.snapshot().tensors.items()}
        for name, parameter in self._parameters.items():
            slots = self._optimizer.state.get(parameter, {})
            tensors |= {f"optimizer.{slot}.{name}": _copy(slots[slot]) for slot in OPTIMIZER_SLOTS if slot in slots}
        tensors["rng.cpu"] = torch.get_rng_state().clone()
        if self._device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self._device).clone()
        return BackendState(tensors=tensors, numbers={"steps_done": self._steps_done})

    def load_state(self, state: BackendState) -> None:
        """Continue from `state`; see `TrainerBackend.load_state`."""
        weights = {
            name.removeprefix("model."): tensor for name, tensor in state.tensors.items() if name.startswith("model.")
        }
        own, _ = self._named_tensors()
        wrong = sorted(own.keys() ^ weights.keys()) or [n for n in own if own[n].shape != weights[n].shape]
        if wrong:
            raise ConfigError(
                f"the checkpoint belongs to another model: {wrong[0]!r} and {len(wrong) - 1} more tensors do not fit"
            )
        self._model.load_state_dict(weights, strict=False)
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            slots = {slot: state.tensors.get(f"optimizer.{slot}.{name}") for slot in OPTIMIZER_SLOTS}
            # AdamW keeps its step counter on the CPU, beside moments on the device.
            self._optimizer.state[parameter] = {
                slot: tensor.clone() if slot == "step" else tensor.to(self._device, copy=True)
                for slot, tensor in slots.items()
                if tensor is not None
            }
        self._steps_done = state.numbers["steps_done"]
        torch.set_rng_state(state.tensors["rng.cpu"])
        if self._device.type == "cuda" and "rng.cuda" in state.tensors:
            torch.cuda.set_rng_state(state.tensors["rng.cuda"], self._device)

    def export(self, folder: Path) -> None:
        """Write the current weights as a Hugging Face folder; see `TrainerBackend.export`."""
        export_model(self._model, self._tokenizer, folder)

    def _named_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The model's own tensors by name, and the names that are a second name of one of them."""
        tensors: dict[str, Tensor] = {}
        tied: dict[str, str] = {}
        first_names: dict[tuple[int, tuple[int, ...]], str] = {}
        for name, tensor in self._model.state_dict().items():
            # Parameters that share storage are one tensor under two names; an empty one shares nothing.
            place = (tensor.data_ptr(), tuple(tensor.shape))
            if tensor.numel() and place in first_names:
                tied[name] = first_names[place]
                continue
            first_names[place] = name
            tensors[name] = tensor
        return tensors, tied

    def _check(self, rows: Sequence[TokenRow]) -> int:
        return check_rows(rows, vocab_size=self._vocab_size, max_context_tokens=self._max_context)

    def _micro_batches(self, batch: Sequence[TrainingRow]) -> Iterator[MicroBatch]:
        lengths = [len(item.row.token_ids) for item in batch]
        for indices in plan_micro_batches(lengths, max_tokens=self._settings.max_tokens_per_micro_batch):
            yield collate(batch, indices, device=self._device)

    def _forward(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        extra: dict[str, Any] = {}
        if self._keeps_logits:
            # Scores are needed from the place before the first sampled token on; a prompt's are the larger part.
            sampled_columns = micro.mask.any(dim=0).nonzero()
            first = int(sampled_columns[0]) if len(sampled_columns) else micro.mask.shape[1]
            extra["logits_to_keep"] = micro.mask.shape[1] - first + 1
        # No attention mask: pads are on the right, and attention is causal.
        logits = self._model(input_ids=micro.token_ids, use_cache=False, **extra).logits
        return sampled_logprobs(logits, micro.token_ids, mask=micro.mask, temperature=self._settings.temperature)

    def _loss(self, micro: MicroBatch, num_tokens: int) -> tuple[LossTerms, Tensor]:
        logprobs, entropy = self._forward(micro)
        terms = ppo_clip_loss(
            logprobs,
            micro.old_logprobs,
            micro.advantages,
            mask=micro.mask,
            clip_low=self._settings.clip_low,
            clip_high=self._settings.clip_high,
            denominator=num_tokens,
        )
        return terms, entropy.sum()


def _accumulate(totals: dict[str, Tensor], terms: LossTerms, entropy: Tensor) -> None:
    sums = {
        "loss": terms.loss.detach(),
        "clipped": terms.clipped_sum,
        "kl": terms.kl_sum,
        "ratio": terms.ratio_sum,
        "entropy": entropy,
    }
    for name, value in sums.items():
        totals[name] = totals[name] + value if name in totals else value
    previous = totals.get("ratio_max", terms.ratio_max)
    totals["ratio_max"] = torch.maximum(previous, terms.ratio_max)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
