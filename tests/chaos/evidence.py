"""What a run leaves: gathered from its files, its processes and its spans, for the checks to judge.

Nothing here judges. What can only be seen while the run goes on is collected in `watches.py`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.common.telemetry import names
from services.common.telemetry.file_exporter import read_spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One trajectory in one optimiser step, from its `train.consume` span."""

    trajectory: str
    """`train/task/attempt/member`."""
    step: int
    """The step."""
    version: int
    """Policy version at which it was used."""
    staleness: int
    """What the trainer says of its age."""
    time: float
    """When the step began, seconds since the epoch."""

    @property
    def task(self) -> str:
        """The task, over all its attempts."""
        return self.trajectory.split("/")[1]

    @property
    def attempt(self) -> int:
        """The attempt."""
        return int(self.trajectory.split("/")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What loading the final model showed."""

    problem: str = ""
    """Why it could not be loaded; empty when it could."""
    num_tensors: int = 0
    """Tensors in it."""
    not_finite: tuple[str, ...] = ()
    """Names of tensors that hold an infinite or undefined number."""
    not_committed: tuple[str, ...] = ()
    """Names of tensors that differ from those of the newest checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the checks look at."""

    settings: dict[str, Any]
    """The run's configuration as `section.key`."""
    exit_code: int | None
    """Exit status of the command; `None` when it had to be stopped."""
    last_words: str = ""
    """End of the command's output."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Every line of `metrics.jsonl`, in order."""
    ledger: dict[str, Any] | None = None
    """`ledger.json`."""
    num_looks: int = 0
    """How often the ledger was looked at while the run went on."""
    unbalanced: list[str] = field(default_factory=list)
    """Looks at which it did not balance."""
    given_up: dict[str, int] = field(default_factory=dict)
    """Training tasks given up by reason, as seen while the run went on, over all that Redis forgot."""
    summary: dict[str, Any] | None = None
    """`summary.json`."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """State of every checkpoint that was ever there, in order of appearance."""
    uses: list[Use] = field(default_factory=list)
    """Trajectories in steps; a killed trainer takes its newest spans with it."""
    sampled_by: dict[str, set[int]] = field(default_factory=dict)
    """Oldest version that sampled a trajectory, by the rollouters' root spans; several when it was tried again."""
    published: list[tuple[float, int]] = field(default_factory=list)
    """When the publishing of each version began."""
    weights: Weights = Weights()
    """The final model."""
    left_behind: list[str] = field(default_factory=list)
    """Command lines of processes that outlived the run."""
    rival_exit_codes: list[int | None] = field(default_factory=list)
    """Exit status of each second trainer; `None` when it still ran."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; one that a kill has cut is left out."""
    found = []
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file; `None` when it is not there."""
    return json.loads(path.read_text()) if path.exists() else None


def read_traces(path: Path) -> tuple[list[Use], dict[str, set[int]], list[tuple[float, int]]]:
    """Read uses, sampling versions and publications from `traces.jsonl`."""
    uses: list[Use] = []
    sampled_by: dict[str, set[int]] = {}
    published: list[tuple[float, int]] = []
    for name, values, time in _spans(path):
        if name == names.SPAN_TRAIN_CONSUME:
            uses.append(
                Use(
                    trajectory=values[names.TRAJECTORY_ID],
                    step=int(values[names.STEP]),
                    version=int(values[names.POLICY_VERSION]),
                    staleness=int(values[names.STALENESS]),
                    time=time,
                )
            )
        elif name == names.SPAN_TRAJECTORY and names.POLICY_VERSION_OLDEST in values:
            sampled_by.setdefault(values[names.TRAJECTORY_ID], set()).add(int(values[names.POLICY_VERSION_OLDEST]))
        elif name == names.SPAN_POLICY_PUBLISH:
            published.append((time, int(values[names.POLICY_VERSION])))
    return uses, sampled_by, published


def _spans(path: Path) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Name, attributes and start of every span."""
    if not path.exists():
        return
    for _, span in read_spans(path):
        values = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
        yield span["name"], values, int(span["startTimeUnixNano"]) / 1e9


def load_weights(run_directory: Path) -> Weights:
    """Load `final/` as any user would, and hold it against the newest checkpoint."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    final = run_directory / "final"
    try:
        model = AutoModelForCausalLM.from_pretrained(final, local_files_only=True)
        AutoTokenizer.from_pretrained(final, local_files_only=True)
        newest = max((run_directory / "checkpoints").glob("step-*"), default=None)
        committed = load_file(newest / "tensors.safetensors") if newest else {}
    except (OSError, ValueError) as error:
        return Weights(problem=" ".join(str(error).split()))
    tensors = dict(model.named_parameters())
    return Weights(
        num_tensors=len(tensors),
        not_finite=tuple(name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()),
        not_committed=tuple(
            name
            for name, tensor in tensors.items()
            if name != "lm_head.weight" and not _equal(committed.get(f"model.{name}"), tensor)
        ),
    )


def _equal(left: Any, right: Any) -> bool:
    """Whether two tensors hold the same; nothing equals a missing one."""
    import torch

    return left is not None and torch.equal(left, right)
