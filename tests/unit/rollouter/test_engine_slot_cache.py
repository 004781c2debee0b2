import pytest
import torch

from services.rollouter.engine.slot_cache import SlotCache, slot_attention

HEADS, WIDTH = 2, 4


def random_states(rows, length):
    return torch.randn(rows, HEADS, length, WIDTH), torch.randn(rows, HEADS, length, WIDTH)


def prefill(cache, rows, length, sources=None):
    sources = list(range(len(rows))) if sources is None else sources
    cache.begin_prefill(rows=torch.tensor(rows), sources=torch.tensor(sources), length=length)
    states = random_states(max(sources) + 1, length)
    cache.update(*states, 0)
    return states


def step(cache, positions):
    cache.begin_step(positions=torch.tensor(positions), used=max(positions) + 1)
    states = random_states(len(positions), 1)
    return states, cache.update(*states, 0)


def test_a_step_sees_the_prompts_and_its_own_token_in_their_columns():
    torch.manual_seed(0)
    cache = SlotCache(max_columns=256)
    prompt_keys, prompt_values = prefill(cache, [0, 1], 5)
    (keys, values), (all_keys, all_values) = step(cache, [5, 3])
    assert all_keys.shape == (2, HEADS, 6, WIDTH)
    assert torch.equal(all_keys[0, :, :5], prompt_keys[0])
    assert torch.equal(all_values[1, :, :3], prompt_values[1, :, :3])
    assert torch.equal(all_keys[0, :, 5], keys[0, :, 0])
    assert torch.equal(all_values[1, :, 3], values[1, :, 0])


def test_one_prompt_fills_several_rows():
    cache = SlotCache(max_columns=64)
    keys, _ = prefill(cache, [0, 1, 2], 4, sources=[0, 0, 1])
    _, (all_keys, _) = step(cache, [4, 4, 4])
    for row, source in enumerate((0, 0, 1)):
        assert torch.equal(all_keys[row, :, :4], keys[source])


def test_buffers_grow_with_rows_and_columns_and_keep_what_they_hold():
    cache = SlotCache(max_columns=300)
    keys, _ = prefill(cache, [0], 4)
    prefill(cache, [*range(1, 40)], 200)
    _, (all_keys, _) = step(cache, [4, *[200] * 39])
    assert torch.equal(all_keys[0, :, :4], keys[0])


def test_moving_a_row_takes_all_its_columns_even_after_a_shorter_prefill():
    cache = SlotCache(max_columns=64)
    prefill(cache, [0, 1], 8)
    _, (before, _) = step(cache, [8, 8])
    kept = before[1].clone()
    prefill(cache, [2], 3)
    cache.move_row(1, 0)
    _, (after, _) = step(cache, [9, 3])
    assert torch.equal(after[0, :, :9], kept)


def test_a_wiped_row_holds_zeros():
    cache = SlotCache(max_columns=64)
    prefill(cache, [0, 1], 8)
    cache.zero_row(0)
    _, (all_keys, all_values) = step(cache, [8, 8])
    assert not all_keys[0, :, :8].any()
    assert not all_values[0, :, :8].any()
    assert all_keys[1, :, :8].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_attends_as_repeated_heads_would(dtype):
    torch.manual_seed(0)
    query = torch.randn(3, 4, 1, WIDTH, dtype=dtype)
    key, value = (states.to(dtype) for states in random_states(3, 7))
    seen = torch.arange(7) < torch.tensor([[7], [2], [5]])
    mask = torch.zeros(3, 1, 1, 7, dtype=dtype).masked_fill(~seen[:, None, None], -torch.inf)
    output, _ = slot_attention(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), attn_mask=mask, scale=0.3
    )
    assert torch.allclose(output, expected.transpose(1, 2), atol=1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_scores_it_does_not_know_are_refused(name):
    states = torch.zeros(1, 2, 1, WIDTH)
    with pytest.raises(NotImplementedError, match=name):
        slot_attention(torch.nn.Module(), states, states, states, None, **{name: 1.0})
