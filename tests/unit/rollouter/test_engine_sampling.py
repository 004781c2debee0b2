import numpy as np
import pytest
import torch

from services.rollouter.engine.sampling import RowSampling, sample


def rows(count, *, temperature=1.0, top_p=1.0, top_k=0):
    return RowSampling(
        temperature=np.broadcast_to(np.float32(temperature), (count,)),
        top_p=np.broadcast_to(np.float32(top_p), (count,)),
        top_k=np.broadcast_to(np.int64(top_k), (count,)),
        seeds=np.arange(count, dtype=np.uint64),
        positions=np.full(count, 5),
    )


def test_tokens_come_as_often_as_their_probability_says():
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125])
    tokens, logprobs = sample(probabilities.log().expand(20000, 4), rows(20000))
    frequencies = np.bincount(tokens, minlength=4) / 20000
    assert np.allclose(frequencies, probabilities, atol=0.012)
    assert np.allclose(logprobs, probabilities.log()[torch.from_numpy(tokens)], atol=1e-6)


def test_log_probs_are_those_of_the_distribution_after_temperature():
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample(logits, rows(50, temperature=0.5))
    expected = torch.log_softmax(logits / 0.5, dim=-1)[torch.arange(50), torch.from_numpy(tokens)]
    assert np.allclose(logprobs, expected, atol=1e-6)


def test_top_k_leaves_k_tokens_and_renormalises():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(3000, 4)
    tokens, logprobs = sample(logits, rows(3000, top_k=2))
    assert set(tokens.tolist()) == {0, 1}
    expected = torch.log_softmax(torch.tensor([3.0, 2.0]), dim=-1)
    assert np.allclose(logprobs, expected[torch.from_numpy(tokens)], atol=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(3000, 4)
    tokens, logprobs = sample(logits, rows(3000, top_p=0.7))
    assert set(tokens.tolist()) == {0, 1}
    expected = torch.tensor([0.5 / 0.8, 0.3 / 0.8]).log()
    assert np.allclose(logprobs, expected[torch.from_numpy(tokens)], atol=1e-5)


def test_a_tiny_top_p_is_greedy_with_certainty():
    tokens, logprobs = sample(torch.tensor([[0.1, 0.9, 0.2]]).expand(200, 3), rows(200, top_p=1e-6))
    assert set(tokens.tolist()) == {1}
    assert np.allclose(logprobs, 0.0)


def test_top_k_comes_before_top_p():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(3000, 4)
    tokens, _ = sample(logits, rows(3000, top_k=2, top_p=0.5))
    assert set(tokens.tolist()) == {0}


def test_rows_with_and_without_truncation_share_a_batch():
    mixed = RowSampling(
        temperature=np.array([1.0, 1.0, 0.0], dtype=np.float32),
        top_p=np.array([1.0, 1.0, 1.0], dtype=np.float32),
        top_k=np.array([0, 1, 0]),
        seeds=np.array([1, 2, 3], dtype=np.uint64),
        positions=np.array([1, 1, 1]),
    )
    logits = torch.tensor([0.2, 0.2, 0.6]).log().expand(3, 3)
    tokens, logprobs = sample(logits, mixed)
    alone, alone_logprobs = sample(
        logits[:1],
        RowSampling(
            temperature=mixed.temperature[:1],
            top_p=mixed.top_p[:1],
            top_k=mixed.top_k[:1],
            seeds=mixed.seeds[:1],
            positions=mixed.positions[:1],
        ),
    )
    assert (tokens[0], logprobs[0]) == (alone[0], alone_logprobs[0])
    assert tokens[1:].tolist() == [2, 2]
    assert logprobs[1:].tolist() == [0.0, 0.0]


def test_greedy_takes_the_most_likely_token_with_log_prob_zero():
    tokens, logprobs = sample(torch.tensor([[0.0, 2.0, 1.0]]), rows(1, temperature=0.0))
    assert tokens.tolist() == [1]
    assert logprobs.tolist() == [0.0]


def test_tokens_of_probability_zero_never_come():
    logits = torch.full((2000, 5), -torch.inf)
    logits[:, 2] = 0.0
    logits[:, 3] = 0.0
    tokens, _ = sample(logits, rows(2000))
    assert set(tokens.tolist()) == {2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_non_finite_logits_show_in_the_log_prob_of_their_row_only(temperature, broken):
    logits = torch.zeros(3, 4)
    logits[1, 2] = broken
    _, logprobs = sample(logits, rows(3, temperature=temperature))
    assert np.isfinite(logprobs).tolist() == [True, False, True]
