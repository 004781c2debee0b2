import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from services.rollouter.engine.slot_forward import SlotForward, fits
from tests.unit.rollouter.engine_models import gpt2_model, llama_model, random_prompts, sliding_model, tiny_model
from tests.unit.rollouter.test_engine_forward import plain_logits


def capped_model():
    torch.manual_seed(4)
    config = Gemma2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("build", [tiny_model, llama_model, sliding_model, gpt2_model])
def test_rows_of_all_lengths_join_and_leave_and_keep_the_models_own_numbers(build):
    model, plain = build(), build()
    forward = SlotForward(model, max_columns=128)
    sequences = [list(prompt) for prompt in random_prompts((6, 3, 9))]
    logits = forward.prefill(0, [tuple(ids) for ids in sequences])
    for step in range(12):
        expected = torch.stack([plain_logits(plain, ids) for ids in sequences])
        assert torch.allclose(logits, expected, atol=1e-4)
        if step in {2, 7}:
            forward.remove(0, len(sequences) - 1)
            sequences[0] = sequences.pop()
        if step == 4:
            (joining,) = random_prompts((8,), seed=5)
            joined = forward.prefill(len(sequences), [joining, joining])
            sequences += [list(joining), list(joining)]
            assert torch.allclose(joined[0], plain_logits(plain, joining), atol=1e-4)
        tokens = np.array([11 + row for row in range(len(sequences))])
        positions = np.array([len(ids) for ids in sequences])
        for ids, token in zip(sequences, tokens, strict=True):
            ids.append(int(token))
        logits = forward.step(tokens, positions)


def test_equal_prompts_are_read_once():
    model = tiny_model()
    forward = SlotForward(model, max_columns=64)
    shapes = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    first, second = random_prompts((5, 3))
    logits = forward.prefill(0, [first, second, first, first])
    assert shapes == [(2, 5)]
    assert torch.equal(logits[0], logits[2])


def test_a_wiped_row_does_not_spoil_the_next_one_in_its_place():
    model = tiny_model()
    forward = SlotForward(model, max_columns=64)
    long, short = random_prompts((20, 4))
    kept = model.model.norm.weight.data
    embedding = model.model.embed_tokens.weight.data
    model.model.embed_tokens.weight.data = torch.full_like(embedding, torch.nan)
    assert forward.prefill(0, [long]).isnan().any()
    forward.scrub(0)
    forward.remove(0, 0)
    model.model.embed_tokens.weight.data = embedding
    forward.prefill(0, [short])
    assert forward.step(np.array([7]), np.array([4])).isfinite().all()
    assert torch.equal(model.model.norm.weight.data, kept)


@pytest.mark.parametrize("build", [tiny_model, llama_model, sliding_model, gpt2_model])
def test_slots_are_found_to_fit_and_the_models_attention_is_put_back(build):
    model = build()
    before = model.config._attn_implementation
    assert fits(SlotForward, model)
    assert model.config._attn_implementation == before


def test_capped_scores_are_found_not_to_fit():
    assert not fits(SlotForward, capped_model())


def test_slots_that_give_other_numbers_are_found_not_to_fit():
    class Wrong(SlotForward):
        def step(self, token_ids, positions):
            return super().step(token_ids, positions) + 0.1

    assert not fits(Wrong, tiny_model())
