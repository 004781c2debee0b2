"""A tiny model folder, built once per process, and rows to train it on."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from services.common.types import TokenRow, VersionSpan
from services.trainer.backend.port import TrainingRow
from services.trainer.tiny_model import TinyModelShape, build_tiny_model

SHAPE = TinyModelShape(hidden_size=32, intermediate_size=64, num_layers=2, max_context_tokens=64)
QUESTIONS = [f"what is {a} + {b}?" for a in range(4) for b in range(4)]


@functools.cache
def _held_folder():
    return tempfile.TemporaryDirectory()


@functools.cache
def tiny_folder():
    folder = Path(_held_folder().name) / "tiny"
    build_tiny_model(folder, corpus=QUESTIONS, seed=0, shape=SHAPE)
    return folder


def make_row(prompt, sampled, *, logprob=-1.0):
    """A row of prompt ids and sampled ids, every sampled one with the same log-prob or with its own."""
    logprobs = [logprob] * len(sampled) if isinstance(logprob, float) else list(logprob)
    start, end = len(prompt), len(prompt) + len(sampled)
    return TokenRow(
        token_ids=np.array([*prompt, *sampled], np.int32),
        loss_mask=np.array([0] * start + [1] * len(sampled), np.uint8),
        logprobs=np.array([0.0] * start + logprobs, np.float32),
        version_spans=(VersionSpan(start=start, end=end, version=0),) if sampled else (),
    )


def random_batch(seed, *, num_rows=6):
    """Rows of different lengths with advantages of both signs, near the policy's own log-probs."""
    draw = np.random.default_rng(seed)
    rows = []
    for index in range(num_rows):
        prompt = draw.integers(3, 200, size=int(draw.integers(2, 12))).tolist()
        sampled = draw.integers(3, 200, size=int(draw.integers(1, 6))).tolist()
        logprob = draw.normal(-5.5, 0.3, size=len(sampled)).tolist()
        rows.append(TrainingRow(row=make_row(prompt, sampled, logprob=logprob), advantage=float(index % 3 - 1) + 0.25))
    return rows
