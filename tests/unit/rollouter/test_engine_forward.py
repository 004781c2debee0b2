import numpy as np
import pytest
import torch

from services.rollouter.engine.forward import SequentialForward
from tests.unit.rollouter.engine_models import gpt2_model, llama_model, random_prompts, sliding_model, tiny_model


def plain_logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("build", [tiny_model, llama_model, sliding_model, gpt2_model])
def test_it_gives_the_models_own_numbers_while_rows_leave(build):
    model = build()
    forward = SequentialForward(model)
    sequences = [list(prompt) for prompt in random_prompts((6, 3, 9))]
    logits = forward.prefill(0, [tuple(ids) for ids in sequences])
    for step in range(6):
        expected = torch.stack([plain_logits(model, ids) for ids in sequences])
        assert torch.allclose(logits, expected, atol=1e-4)
        if step == 2:
            forward.remove(0, len(sequences) - 1)
            sequences[0] = sequences.pop()
        tokens = np.array([11 + row for row in range(len(sequences))])
        positions = np.array([len(ids) for ids in sequences])
        for ids, token in zip(sequences, tokens, strict=True):
            ids.append(int(token))
        logits = forward.step(tokens, positions)


def test_a_repeated_prompt_is_read_once_and_its_members_part_ways():
    model = tiny_model()
    reads = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: reads.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    forward = SequentialForward(model)
    (prompt,) = random_prompts((5,))
    logits = forward.prefill(0, [prompt, prompt])
    assert reads == [5]
    assert torch.equal(logits[0], logits[1])
    stepped = forward.step(np.array([4, 8]), np.array([5, 5]))
    for row, token in enumerate((4, 8)):
        assert torch.allclose(stepped[row], plain_logits(model, [*prompt, token]), atol=1e-4)


def test_a_remembered_prompt_is_forgotten_when_the_weights_change():
    model = tiny_model()
    forward = SequentialForward(model)
    (prompt,) = random_prompts((5,))
    before = forward.prefill(0, [prompt])
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    forward.forget()
    assert torch.allclose(forward.prefill(1, [prompt]), 2 * before, atol=1e-5)
