import numpy as np
import pytest
import torch

from services.rollouter.engine.lean_forward import LeanForward
from services.rollouter.engine.slot_forward import SlotForward, fits
from services.rollouter.engine.weight_swap import WeightSwap
from tests.unit.rollouter.engine_models import (
    gpt2_model,
    llama_model,
    random_prompts,
    sliding_model,
    tiny_model,
    weights_that_say,
)


@pytest.mark.parametrize("build", [tiny_model, llama_model])
def test_a_lean_step_gives_what_the_models_own_step_gives(build):
    prompts = random_prompts((70, 3, 9, 9))
    lean, slots = (kind(build(), max_columns=128) for kind in (LeanForward, SlotForward))
    assert torch.equal(lean.prefill(0, prompts), slots.prefill(0, prompts))
    for step in range(5):
        tokens, positions = np.array([5, 6, 7, 8]), np.array([70, 3, 9, 9]) + step
        assert torch.allclose(lean.step(tokens, positions), slots.step(tokens, positions), atol=1e-5)


@pytest.mark.parametrize("build", [tiny_model, llama_model])
def test_it_is_found_to_fit(build):
    assert fits(LeanForward, build())


@pytest.mark.parametrize("build", [sliding_model, gpt2_model, lambda: tiny_model().bfloat16()])
def test_other_models_are_left_to_others(build):
    assert not fits(LeanForward, build())


def test_a_weight_swap_reaches_it():
    model = tiny_model()
    forward = LeanForward(model, max_columns=64)
    forward.prefill(0, random_prompts((4,)))
    WeightSwap(model).prepare(weights_that_say(9)).swap()
    assert forward.step(np.array([5]), np.array([4])).argmax().item() == 9
