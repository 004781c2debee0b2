"""Decode speed of the transformers engine against `generate` of transformers, same model, same prompts, same machine.

The workload is 64 requests on a tiny random Qwen3 (hidden 128, 4 layers) that never ends by itself. `mixed` draws each
request's length from 16..128, as completions have in practice; `equal` lets every request have 128. `generate` decodes
all 64 as one batch and runs until the longest is done, which is how it is used; tokens past a request's length are not
counted. `generate` must return the logits and yields log-probabilities, as reinforcement learning needs; the figure
without them is given too. Runs alternate, with one and with two compute threads, and each side counts its fastest:
other load on the machine only ever slows.
`cpu_ratio` compares processor seconds instead of time, which other load on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from services.common.config.learning import ModelSection
from services.common.config.serving import EngineSection
from services.common.types import Message, SamplingParams
from services.rollouter.engine.factory import build_engine
from services.rollouter.engine.port import GenerationRequest
from services.trainer.tiny_model import TinyModelShape, build_tiny_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from services.rollouter.engine.port import Engine

NUM_REQUESTS = 64
LONGEST = 128
SHORTEST = 16
THREADS = (1, 2)
TARGET_RATIO = 2.0


def build_endless_model(folder: Path) -> None:
    """A tiny random model without end tokens, so that lengths are what the workload says."""
    corpus = [f"what is {left} plus {right}" for left in range(40) for right in range(40)]
    shape = TinyModelShape(hidden_size=128, intermediate_size=384, num_layers=4)
    build_tiny_model(folder, corpus=corpus, seed=0, shape=shape)
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text())
    path.write_text(json.dumps({**generation, "eos_token_id": []}))


def make_prompts(engine: Engine) -> list[tuple[int, ...]]:
    """64 prompts of about the same length: 8 tasks, 8 members each, as a group has."""
    rng = np.random.default_rng(1)
    questions = [f"what is {rng.integers(10, 99)} plus {rng.integers(10, 99)}" for _ in range(NUM_REQUESTS // 8)]
    return [engine.render((Message(role="user", content=text),)) for text in questions for _ in range(8)]


async def engine_rate(engine: Engine, prompts: list[tuple[int, ...]], lengths: NDArray[np.int64]) -> float:
    """Tokens per second of the engine, log-probabilities included."""
    requests = [
        GenerationRequest(
            request_id=f"bench/{index}",
            prompt_ids=prompt,
            sampling=SamplingParams(max_new_tokens=int(length)),
            seed=index,
        )
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    began = time.perf_counter()
    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    seconds = time.perf_counter() - began
    assert [len(generation.token_ids) for generation in generations] == lengths.tolist()
    return int(lengths.sum()) / seconds


def generate_rate(
    model: torch.nn.Module, prompts: list[tuple[int, ...]], lengths: NDArray[np.int64], *, with_logprobs: bool
) -> float:
    """Useful tokens per second of transformers' `generate`, as one left-padded batch."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=int(lengths.max()),
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=with_logprobs,
    )
    began = time.perf_counter()
    output = model.generate(ids, attention_mask=mask, generation_config=settings)
    if with_logprobs:
        logits = torch.stack(output.logits, dim=1).float()
        torch.log_softmax(logits, dim=-1).gather(-1, output.sequences[:, longest:, None])
    return int(lengths.sum()) / (time.perf_counter() - began)


async def measure(folder: Path, *, repeats: int) -> dict[str, float]:
    """Keep the fastest run of each side over all thread counts, and compare."""
    figures: dict[str, float] = {}
    for threads in THREADS:
        for name, rate in (await measure_threads(folder, threads=threads, repeats=repeats)).items():
            figures[name] = max(figures.get(name, 0.0), round(rate, 1))
    for name in ("mixed", "equal"):
        ours = figures[f"{name}_engine_tokens_per_second"]
        figures[f"{name}_ratio"] = round(ours / figures[f"{name}_generate_tokens_per_second"], 2)
        bare = figures[f"{name}_generate_without_logprobs_tokens_per_second"]
        figures[f"{name}_ratio_without_logprobs"] = round(ours / bare, 2)
        cpu = figures[f"{name}_engine_tokens_per_cpu_second"] / figures[f"{name}_generate_tokens_per_cpu_second"]
        figures[f"{name}_cpu_ratio"] = round(cpu, 2)
    return figures


async def measure_threads(folder: Path, *, threads: int, repeats: int) -> dict[str, float]:
    """Alternate the two sides at one number of compute threads and keep the fastest run of each."""
    torch.set_num_threads(threads)
    engine = build_engine(EngineSection(max_slots=NUM_REQUESTS, threads=threads), ModelSection(path=str(folder)))
    await engine.start()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = make_prompts(engine)
    workloads = {
        "mixed": np.random.default_rng(2).integers(SHORTEST, LONGEST + 1, NUM_REQUESTS),
        "equal": np.full(NUM_REQUESTS, LONGEST),
    }
    fastest: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, lengths in workloads.items():
            marks = [time.process_time()]
            rates = {f"{name}_engine_tokens_per_second": await engine_rate(engine, prompts, lengths)}
            marks.append(time.process_time())
            rates[f"{name}_generate_tokens_per_second"] = generate_rate(model, prompts, lengths, with_logprobs=True)
            marks.append(time.process_time())
            bare = generate_rate(model, prompts, lengths, with_logprobs=False)
            rates[f"{name}_generate_without_logprobs_tokens_per_second"] = bare
            rates[f"{name}_engine_tokens_per_cpu_second"] = int(lengths.sum()) / (marks[1] - marks[0])
            rates[f"{name}_generate_tokens_per_cpu_second"] = int(lengths.sum()) / (marks[2] - marks[1])
            # The first round warms both sides up.
            for key, rate in rates.items() if repeat else ():
                fastest[key] = max(fastest.get(key, 0.0), rate)
    await engine.stop()
    return fastest


def main() -> None:
    """Run the bench and print its one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repeats instead of five")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build_endless_model(Path(folder))
        figures = asyncio.run(measure(Path(folder), repeats=2 if arguments.quick else 5))
    targets = {"mixed_ratio": TARGET_RATIO}
    met = all(figures[name] >= target for name, target in targets.items())
    print(json.dumps({"bench": "decode", "figures": figures, "targets": targets, "met": met}))


if __name__ == "__main__":
    main()
