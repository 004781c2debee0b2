"""A short supervised warm start: the tiny model learns what an answer looks like, and is unsure which one is right.

Owns the recipe and the cache of built models. Two phases: the model first learns question and answer; then it is
trained on answers of which most are another question's, which blurs what it knows until it is right only now and then.
What is left is the usual start of reinforcement: the format holds, the right answer is among the likely ones, and
sampling finds it too rarely. Guarantees that the pass rate is measured, not assumed (exactly, by teacher forcing: the
probability that a sample at temperature 1 is the right answer and then the end token), that it is at most
`max_pass_rate`, and that the same settings and pairs give the same folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch
import transformers
from torch.nn import functional

from services.common.errors import ConfigError
from services.common.model_folder import check_model_folder, load_model_folder
from services.trainer.export import remove_debris, replace_folder
from services.trainer.schedule import learning_rate_at
from services.trainer.tiny_model import TinyModelShape, build_tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from services.common.model_folder import LoadedModel

logger = logging.getLogger(__name__)

RECIPE = 1
"""Part of the cache key; grows when this code would build another model from the same settings."""
IGNORED = -100
"""Target that cross-entropy leaves out."""
MEASURE_EVERY = 10
"""Optimiser steps between two measurements of the pass rate while it rises."""
MEASURE_BLUR_EVERY = 2
"""The same while it falls, which is fast."""
MAX_LINES = 12
"""Lines of progress per phase at most."""
WARMUP_STEPS = 10
"""Optimiser steps of rising learning rate at the start of each phase."""
BLUR_RATE_SHARE = 0.1
"""The second phase's learning rate is this share of the first's: it must blur what was learnt, not wipe it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartSettings:
    """How the built-in model is warmed up.

    Example: `WarmStartSettings(seed=3, wrong_share=0.8)`.
    """

    seed: int = 0
    """Seed of weights, draws and corruption."""
    max_steps: int = 450
    """Optimiser steps of each of the two phases at most."""
    batch_size: int = 64
    """Pairs per optimiser step."""
    learning_rate: float = 4e-3
    """AdamW's peak rate in the first phase; rises shortly and falls linearly to a tenth."""
    learn_to_pass_rate: float = 0.95
    """The first phase, on right answers only, stops as soon as the held-out pass rate is at least this."""
    wrong_share: float = 0.9
    """Share of the second phase's answers that are another question's, in [0, 1)."""
    stop_at_pass_rate: float = 0.3
    """The second phase stops as soon as the held-out pass rate is at most this."""
    max_pass_rate: float = 0.4
    """A result above this is an error: there would be too little left to learn."""
    num_threads: int = 1
    """CPU threads; part of what makes the result repeatable."""
    shape: TinyModelShape = field(default_factory=TinyModelShape)
    """Size of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartResult:
    """Where the model is and how good it is."""

    folder: Path
    """The Hugging Face folder."""
    pass_rate: float
    """Held-out probability of a right answer, sampled at temperature 1."""
    steps: int
    """Optimiser steps it took."""
    was_cached: bool
    """Whether an earlier build was used."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Examples:
    """Padded prompt and answer ids."""

    token_ids: Tensor
    """`[B, T]` int64, padded on the right."""
    targets: Tensor
    """`[B, T]` int64; -100 outside the answer and its end token."""


def prepare_warm_start(
    cache: Path,
    settings: WarmStartSettings,
    *,
    train_pairs: Sequence[tuple[str, str]],
    held_out_pairs: Sequence[tuple[str, str]],
    progress: Callable[[str], None] = logger.info,
) -> WarmStartResult:
    """Build the warm-started tiny model, or find it in the cache.

    Args:
        cache: folder of built models; each lies under a hash of everything that shaped it.
        settings: the recipe's numbers.
        train_pairs: question and right answer, to learn the format from.
        held_out_pairs: question and right answer, to measure the pass rate on.
        progress: gets a line now and then.

    Returns:
        The folder and its pass rate.

    Raises:
        ConfigError: there are no pairs, or the pass rate missed its bounds.
    """
    if not train_pairs or not held_out_pairs:
        raise ConfigError(
            f"a warm start needs pairs: {len(train_pairs)} to train on, {len(held_out_pairs)} to measure on"
        )
    folder = cache / _content_key(settings, train_pairs, held_out_pairs)
    summary = folder / "warm_start.json"
    if summary.is_file():
        check_model_folder(folder)
        found = json.loads(summary.read_text())
        progress(f"warm start: using {folder}, held-out pass rate {found['pass_rate']:.3f}")
        return WarmStartResult(folder=folder, pass_rate=found["pass_rate"], steps=found["steps"], was_cached=True)
    measured: dict[str, float] = {}

    def write(target: Path) -> None:
        build_tiny_model(target, corpus=[q for q, _ in train_pairs], seed=settings.seed, shape=settings.shape)
        loaded = load_model_folder(target)
        build = _WarmStart(loaded, settings, train_pairs=train_pairs, held_out_pairs=held_out_pairs, progress=progress)
        measured.update(pass_rate=build.run(), steps=build.steps)
        loaded.model.save_pretrained(target)
        (target / "warm_start.json").write_text(json.dumps(measured))

    remove_debris(folder)
    replace_folder(folder, write, keep_existing=True)
    return WarmStartResult(
        folder=folder, pass_rate=measured["pass_rate"], steps=int(measured["steps"]), was_cached=False
    )


def expected_pass_rate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    batch_size: int = 256,
) -> float:
    """Compute how often a sample at temperature 1 is exactly the right answer, without sampling.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        pairs: question and right answer.
        batch_size: pairs per forward pass.

    Returns:
        Mean probability of the right answer's tokens followed by the end token.
    """
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(pairs), batch_size):
            examples = _encode(tokenizer, pairs[start : start + batch_size])
            nll = functional.cross_entropy(*_shifted(model, examples), reduction="none", ignore_index=IGNORED)
            per_answer = nll.view(examples.targets.shape[0], -1).sum(dim=1)
            total += float((-per_answer.double()).exp().sum())
    return total / len(pairs)


def wrong_answer(answer: str, pool: Sequence[str], draw: random.Random) -> str:
    """Take the answer of another question.

    Args:
        answer: the right one.
        pool: the different answers of the dataset.
        draw: source of chance.

    Returns:
        Another answer of the pool; the same one only when the pool has no other.
    """
    others = [other for other in pool if other != answer]
    return draw.choice(others) if others else answer


class _WarmStart:
    """One build: the model, its optimiser and the draws."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: WarmStartSettings,
        *,
        train_pairs: Sequence[tuple[str, str]],
        held_out_pairs: Sequence[tuple[str, str]],
        progress: Callable[[str], None],
    ) -> None:
        torch.set_num_threads(settings.num_threads)
        self.settings = settings
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.held_out_pairs = held_out_pairs
        self.pool = sorted({answer for _, answer in train_pairs})
        self.progress = progress
        self.draw = random.Random(settings.seed)
        self.queue = self._shuffled(sorted(set(train_pairs)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        self.steps = 0

    def run(self) -> float:
        """Learn the task, then blur it; return the held-out pass rate."""
        settings = self.settings
        self._phase(
            "learning",
            wrong_share=0.0,
            rate_share=1.0,
            measure_every=MEASURE_EVERY,
            is_done=lambda rate: rate >= settings.learn_to_pass_rate,
        )
        pass_rate = self._phase(
            "blurring",
            wrong_share=settings.wrong_share,
            rate_share=BLUR_RATE_SHARE,
            measure_every=MEASURE_BLUR_EVERY,
            is_done=lambda rate: rate <= settings.stop_at_pass_rate,
        )
        if not pass_rate <= settings.max_pass_rate:
            raise ConfigError(
                f"warm start: held-out pass rate is {pass_rate:.3f} after {self.steps} steps, above "
                f"{settings.max_pass_rate}; raise model.warm_start.wrong_share (it is {settings.wrong_share})"
            )
        return pass_rate

    def _shuffled(self, pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        while True:
            self.draw.shuffle(pairs)
            yield from pairs

    def _phase(
        self, name: str, *, wrong_share: float, rate_share: float, measure_every: int, is_done: Callable[[float], bool]
    ) -> float:
        pass_rate, told = 0.0, -self.settings.max_steps
        for step in range(1, self.settings.max_steps + 1):
            loss = self._step(wrong_share, rate_share * self._rate(step))
            if step % measure_every and step != self.settings.max_steps:
                continue
            pass_rate = expected_pass_rate(self.model, self.tokenizer, self.held_out_pairs)
            is_last = is_done(pass_rate) or step == self.settings.max_steps
            if is_last or (step - told) * (MAX_LINES - 1) > self.settings.max_steps:
                self.progress(f"warm start, {name}: step {step}, loss {loss:.3f}, held-out pass rate {pass_rate:.3f}")
                told = step
            if is_last:
                break
        return pass_rate

    def _rate(self, step: int) -> float:
        max_steps = self.settings.max_steps
        return learning_rate_at(
            step - 1, base=1.0, schedule="linear", warmup_steps=WARMUP_STEPS, total_steps=max_steps, min_ratio=0.1
        )

    def _step(self, wrong_share: float, rate_share: float) -> float:
        chosen = [next(self.queue) for _ in range(self.settings.batch_size)]
        batch = [
            (question, wrong_answer(answer, self.pool, self.draw) if self.draw.random() < wrong_share else answer)
            for question, answer in chosen
        ]
        loss = functional.cross_entropy(*_shifted(self.model, _encode(self.tokenizer, batch)), ignore_index=IGNORED)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate_share
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        return float(loss.detach())


def _encode(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]) -> _Examples:
    rows: list[tuple[list[int], list[int]]] = []
    for question, answer in pairs:
        chat = [{"role": "user", "content": question}]
        prompt: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        rows.append((prompt, [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]))
    longest = max(len(prompt) + len(target) for prompt, target in rows)
    token_ids = torch.zeros((len(rows), longest), dtype=torch.int64)
    targets = torch.full((len(rows), longest), IGNORED, dtype=torch.int64)
    for index, (prompt, target) in enumerate(rows):
        end = len(prompt) + len(target)
        token_ids[index, :end] = torch.tensor(prompt + target)
        targets[index, len(prompt) : end] = torch.tensor(target)
    return _Examples(token_ids=token_ids, targets=targets)


def _shifted(model: PreTrainedModel, examples: _Examples) -> tuple[Tensor, Tensor]:
    logits = model(input_ids=examples.token_ids, use_cache=False).logits[:, :-1].float()
    return logits.flatten(0, 1), examples.targets[:, 1:].flatten()


def _content_key(
    settings: WarmStartSettings, train_pairs: Sequence[tuple[str, str]], held_out_pairs: Sequence[tuple[str, str]]
) -> str:
    content = {
        "recipe": RECIPE,
        "settings": asdict(settings),
        "train": list(train_pairs),
        "held_out": list(held_out_pairs),
        "libraries": [torch.__version__, transformers.__version__],
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
