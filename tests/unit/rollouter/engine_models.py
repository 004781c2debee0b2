"""Tiny models for engine tests, built once per process, and weights that always say the same token."""

from __future__ import annotations

import functools
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from services.common.config.learning import ModelSection
from services.common.config.serving import EngineSection
from services.common.types import Message, SamplingParams
from services.rollouter.engine.port import GenerationRequest
from services.rollouter.engine.transformers_engine import TransformersEngine
from services.trainer.tiny_model import TinyModelShape, build_tiny_model

SHAPE = TinyModelShape(hidden_size=32, intermediate_size=64, num_layers=2, max_context_tokens=128)
_ATTENTION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_COMMON = {**_ATTENTION, "vocab_size": 97, "num_key_value_heads": 2, "max_position_embeddings": 128}


@functools.cache
def _held_folder():
    return tempfile.TemporaryDirectory()


@functools.cache
def tiny_folder():
    folder = Path(_held_folder().name) / "tiny"
    build_tiny_model(folder, corpus=["what is one plus two"], seed=0, shape=SHAPE)
    return folder


def tiny_model():
    return AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32).eval()


def llama_model():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**_COMMON, attention_bias=True)).eval()


def sliding_model():
    torch.manual_seed(2)
    config = Qwen2Config(**_COMMON, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    return Qwen2ForCausalLM(config).eval()


def gpt2_model():
    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=128)).eval()


def weights_that_say(token):
    """All weights of the tiny model, changed so that every next token is `token`."""
    tensors = {name: tensor.clone() for name, tensor in tiny_model().state_dict().items() if name != "lm_head.weight"}
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    embedding = tensors["model.embed_tokens.weight"]
    embedding[:] = 0.01
    embedding[token] = 1.0
    tensors["model.norm.weight"].fill_(1.0)
    return tensors


def random_prompts(lengths, *, vocabulary=97, seed=0):
    generator = np.random.default_rng(seed)
    return [tuple(int(token) for token in generator.integers(3, vocabulary, size=length)) for length in lengths]


@asynccontextmanager
async def running_engine(**settings):
    settings = {"threads": 1, "max_slots": 8, **settings}
    engine = TransformersEngine(EngineSection(**settings), ModelSection(path=str(tiny_folder())))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def make_request(engine, index, *, text="what is one plus two", seed=None, **sampling):
    sampling = {"max_new_tokens": 12, **sampling}
    return GenerationRequest(
        request_id=f"request/{index}",
        prompt_ids=engine.render((Message(role="user", content=text),)),
        sampling=SamplingParams(**sampling),
        seed=index if seed is None else seed,
    )
