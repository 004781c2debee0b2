"""Sections about what is learnt: `[model] [data] [async] [algorithm] [trainer] [validation]`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from services.common.config.base import Section

PRESETS: dict[str, dict[str, Any]] = {
    "sync": {"max_staleness": 0, "updates_per_version": 1, "partial_rollout": False},
    "pipeline": {"max_staleness": 0, "updates_per_version": 2, "partial_rollout": False},
    "one_step_off": {"max_staleness": 1, "updates_per_version": 1, "partial_rollout": False},
    "async": {"max_staleness": 2, "updates_per_version": 1, "partial_rollout": False},
    "fully_async": {"max_staleness": 2, "updates_per_version": 1, "partial_rollout": True},
}
"""What each mode sets; keys given explicitly win."""


class WarmStartSection(Section):
    """`[model.warm_start]`: the short supervised start of a model that is built here."""

    max_steps: int = Field(default=450, ge=0)
    """Supervised steps of each phase at most; 0 leaves the model random."""
    learning_rate: float = Field(default=4e-3, gt=0.0)
    """Peak learning rate of the first phase, which learns from right answers; the second takes a tenth of it."""
    batch_size: int = Field(default=64, ge=1)
    """Examples per step."""
    wrong_share: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Share of the second phase's answers that are another question's, so that the model becomes unsure."""
    stop_at_pass_rate: float = Field(default=0.3, gt=0.0, le=1.0)
    """The second phase stops when sampled answers pass no more often than this."""


class ModelSection(Section):
    """`[model]`: the policy that is trained."""

    path: str = ""
    """Folder or hub name that transformers loads; empty when `build` is set."""
    build: Literal["", "tiny_qwen3"] = ""
    """`tiny_qwen3` builds a tiny Qwen3-architecture model with its own tokenizer, once, beside the run directories."""
    hidden_size: int = Field(default=128, ge=16, le=1024)
    """Width of a model that is built here."""
    num_layers: int = Field(default=4, ge=1, le=32)
    """Depth of a model that is built here."""
    max_context: int = Field(default=256, ge=32, le=8192)
    """Context of a model that is built here, in tokens."""
    warm_start: WarmStartSection = WarmStartSection()
    """Its supervised start."""
    trust_remote_code: bool = False
    """Lets a model folder run its own Python code."""

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        """A model comes from exactly one place."""
        if bool(self.path) == bool(self.build):
            raise ValueError(f"path is {self.path!r} and build is {self.build!r}; set exactly one of them")
        return self


class DataSection(Section):
    """`[data]`: the tasks."""

    source: str
    """`reasoning_gym:<dataset>` or the path of a .jsonl file (relative to the config file)."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a reasoning_gym dataset, e.g. `min_terms`."""
    size: int = Field(default=1000, ge=1)
    """Rows made by a generated source; a file has as many as it has."""
    seed_offset: int = Field(default=0, ge=0)
    """Added to `run.seed` for a generated source, so that training and held-out rows differ."""
    prompt_field: str = "prompt"
    """Field of a file's row that holds the prompt: a text, or a list of messages with role and content."""
    answer_field: str = "answer"
    """Field of a file's row that holds the reference answer."""
    system_prompt: str = ""
    """Put before every prompt as system message when not empty."""
    shuffle: bool = True
    """Visits rows in an order drawn from the seed, anew in each epoch."""
    max_epochs: int = Field(default=0, ge=0)
    """Passes over the rows; 0 repeats until `trainer.total_steps` are done."""


class AsyncSection(Section):
    """`[async]`: how far generation may run ahead of training."""

    mode: Literal["sync", "pipeline", "one_step_off", "async", "fully_async"] = "fully_async"
    """Preset of the three keys below; keys given explicitly win."""
    max_staleness: int = Field(default=2, ge=0, le=1024)
    """Largest age of a trained token, in policy versions."""
    updates_per_version: int = Field(default=1, ge=1, le=1024)
    """Optimiser steps between two published versions."""
    partial_rollout: bool = True
    """Running generations go on through a weight update; else the update waits for them."""
    on_stale: Literal["refill", "drop", "wait"] = "refill"
    """A group that is too old is issued again (`refill`) or given up (`drop`); with `wait` the next version waits for
    groups that would become too old, as long as their rollouters live. `trainer.stall_seconds` bounds such a wait too,
    so it has to be longer than the slowest attempt."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: object) -> object:
        """Fill what the preset says and the user does not."""
        if isinstance(values, dict):
            return {**PRESETS.get(values.get("mode", "fully_async"), {}), **values}
        return values


class AlgorithmSection(Section):
    """`[algorithm]`: advantages and loss."""

    advantage: Literal["grpo"] = "grpo"
    """Advantage estimator."""
    normalize_by_std: bool = True
    """Divides by the group's standard deviation."""
    clip_low: float = Field(default=0.2, ge=0.0, lt=1.0)
    """The ratio is clipped below 1 minus this."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """The ratio is clipped above 1 plus this."""
    min_group_members: int = Field(default=2, ge=1)
    """Scored members that a group needs to be used."""


class TrainerSection(Section):
    """`[trainer]`: the optimiser and its rhythm."""

    address: str = "127.0.0.1:0"
    """Where the trainer listens; port 0 lets `headrace run` choose."""
    total_steps: int = Field(default=100, ge=1)
    """Optimiser steps of the run."""
    groups_per_step: int = Field(default=16, ge=1)
    """Groups in one optimiser step."""
    learning_rate: float = Field(default=1e-6, gt=0.0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """First moment's decay."""
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Second moment's decay."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    max_tokens_per_micro_batch: int = Field(default=16384, ge=1)
    """Padded tokens of one forward pass; the loss does not depend on it."""
    device: str = "auto"
    """`auto`, `cpu` or a CUDA device."""
    threads: int = Field(default=1, ge=0)
    """Compute threads; 0 leaves the choice to torch."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between two checkpoints, rounded up to the next policy version; consumption is committed with them."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""
    keep_versions: int = Field(default=2, ge=1, le=16)
    """Newest policy versions that are served."""
    stall_seconds: float = Field(default=300.0, gt=0.0)
    """A trainer that got no group for so long says what it waits for, and ends the run with an error."""


class ValidationSection(Section):
    """`[validation]`: held-out tasks, measured at the start and at the end."""

    size: int = Field(default=0, ge=0)
    """Held-out rows measured; 0 turns validation off."""
    source: str = ""
    """Like `data.source`; empty takes the same source with other rows."""
    group_size: int = Field(default=1, ge=1, le=1024)
    """Attempts per row."""
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    """Sampling temperature; 0 is greedy."""
    every: int = Field(default=0, ge=0)
    """Also measures after every so many steps; 0 measures at the start and at the end only."""
    disjoint: bool = True
    """Leaves out training rows whose question is held out; a small space of questions overlaps without it."""
