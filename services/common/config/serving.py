"""Sections about what runs where: `[run] [rollout] [engine] [reward] [queue] [telemetry]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from services.common.config.base import Section


class RunSection(Section):
    """`[run]`: the name, place and seed of a run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Names the run directory; letters, digits, dots, dashes and underscores, at most 64."""
    directory: str = "runs"
    """Folder that run directories are made in."""
    seed: int = Field(default=1, ge=0, lt=2**53)
    """Seed of data order, sampling, warm start and optimiser."""
    resume: bool = False
    """Goes on in a run directory that exists; without it an existing one is refused."""


class RolloutSection(Section):
    """`[rollout]`: how many replicas generate, and how they sample."""

    replicas: int = Field(default=2, ge=1, le=256)
    """Rollouters that `headrace run` starts."""
    group_size: int = Field(default=8, ge=1, le=1024)
    """Trajectories per task."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Most tokens sampled per model call."""
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    """Sampling temperature; training log-probs use the same."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass; 1 is off. The trainer's log-probs know the temperature only, so less than 1 skews its ratios."""
    top_k: int = Field(default=0, ge=0)
    """Most likely tokens kept; 0 is off. Skews the trainer's ratios like `top_p`."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    patience_seconds: float = Field(default=300.0, gt=0.0)
    """Time without an answer of the queue after which a rollouter ends; shorter outages are waited for."""


class EngineSection(Section):
    """`[engine]`: what turns prompts into tokens."""

    kind: Literal["transformers", "scripted"] = "transformers"
    """`transformers` decodes any causal language model; `scripted` plays texts and timings from a file."""
    max_slots: int = Field(default=64, ge=1, le=4096)
    """Sequences decoded at the same time by one replica."""
    max_context: int = Field(default=0, ge=0)
    """Most tokens of prompt and completion; 0 takes the model's own limit."""
    deterministic: bool = False
    """A sequence's numbers do not depend on what else is in the batch; slower."""
    device: str = "auto"
    """`auto`, `cpu` or a CUDA device."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the weights served; `auto` is float32 on CPU and bfloat16 on CUDA."""
    threads: int = Field(default=1, ge=0)
    """Compute threads of one replica; 0 leaves the choice to torch."""
    script: str = ""
    """For `scripted`: TOML file with texts and timings."""


class RewardSection(Section):
    """`[reward]`: how completions are scored."""

    address: str = "127.0.0.1:0"
    """Where the reward service listens; port 0 lets `headrace run` choose."""
    scorer: str = "exact_match"
    """Default scorer: `exact_match`, `numeric`, `regex`, `reasoning_gym` or `python:package.module:function`."""
    extract: str = ""
    """Regular expression; of its last match the group `answer`, else the first group, else the whole is scored."""
    regex: str = ""
    """Pattern of the `regex` scorer; a group called `answer` is compared, without one a full match scores 1."""
    numeric_tolerance: float = Field(default=1e-6, ge=0.0)
    """Largest absolute difference that `numeric` lets pass."""
    ignore_case: bool = False
    """`exact_match` compares without regard to case."""
    python_scorers: tuple[str, ...] = ()
    """Further `python:package.module:function` scorers that a task may name; nothing else is ever imported."""
    workers: int = Field(default=1, ge=1, le=64)
    """Worker processes that scorers run in."""
    timeout_seconds: float = Field(default=10.0, gt=0.0)
    """Hard limit of one score; the worker is killed at it."""
    max_pending: int = Field(default=1024, ge=1)
    """Scores that may wait; more are refused with a retry hint."""
    pass_threshold: float = 1.0
    """Reward from which on a trajectory counts as passed."""


class QueueSection(Section):
    """`[queue]`: where tasks and trajectories wait."""

    address: str = "127.0.0.1:0"
    """Where the queue service listens; port 0 lets `headrace run` choose."""
    redis_url: SecretStr = SecretStr("")
    """Existing Redis or Valkey; empty starts one. Also read from HEADRACE_REDIS_URL."""
    append_fsync: Literal["always", "everysec"] = "everysec"
    """When the embedded server forces its log to disk; a crash of the machine loses at most that window of work."""
    lease_seconds: float = Field(default=10.0, gt=0.0, le=3600.0)
    """Time after which the work of a silent holder is given to another."""
    max_member_issues: int = Field(default=4, ge=1)
    """Failed or lapsed tries after which a member is given up."""
    max_queue_size: int = Field(default=0, ge=0)
    """Ready groups held at most; 0 derives (max_staleness + 1) x groups per version."""
    max_queue_bytes: int = Field(default=2 * 1024**3, ge=1)
    """Bytes of put trajectories held at most."""
    when_full: Literal["block", "drop_oldest"] = "block"
    """`block` leases no new group until there is room; `drop_oldest` drops the oldest ready group."""
    max_runs: int = Field(default=1000, ge=0)
    """Runs that the queue service holds, finished ones included; a further one is refused. 0 is no bound."""
    quota_bytes: int = Field(default=16 * 1024**3, ge=0)
    """Payload bytes of one run at which the queue service lets no new group begin, but for a batch that the trainer
    waits for; at twice as many it takes no payload. Bounds `max_queue_bytes`; 0 is no bound."""
    quota_open_tasks: int = Field(default=1_000_000, ge=0)
    """Tasks of one run and partition that wait or are worked on; no more are accepted. 0 is no bound."""
    keep_finished_seconds: float = Field(default=7 * 86400.0, ge=0.0)
    """Time after its last call from which on the queue service deletes a finished run; 0 keeps it."""

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: SecretStr) -> SecretStr:
        """Refuse what redis-py would not understand, without repeating a password."""
        url = value.get_secret_value()
        if url and not url.startswith(("redis://", "rediss://", "unix://")):
            scheme = url.split("://", 1)[0][:16]
            raise ValueError(f"starts with {scheme!r}; use redis://, rediss:// or unix://")
        return value


class TelemetrySection(Section):
    """`[telemetry]`: traces and logs. An OTLP collector is named by the standard OTEL_* variables."""

    traces: bool = True
    """Writes traces.jsonl into the run directory."""
    sample_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of trajectories that are traced; a trajectory is traced whole or not at all."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line written."""
