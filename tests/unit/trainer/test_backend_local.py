import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.common.errors import ConfigError, InternalError, InvalidInputError
from services.trainer.backend.local import LearnerSettings, LocalBackend
from services.trainer.backend.port import BackendState, TrainingRow
from services.trainer.tiny_model import TinyModelShape, build_tiny_model
from tests.unit.trainer.learning_models import QUESTIONS, make_row, random_batch, tiny_folder

SETTINGS = LearnerSettings(learning_rate=1e-3, schedule="linear", total_steps=10, warmup_steps=2)


def make_backend(**changes):
    return LocalBackend(tiny_folder(), replace(SETTINGS, **changes))


def same_weights(one, two):
    first, second = one.snapshot().tensors, two.snapshot().tensors
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_batches_give_the_same_bits():
    one, two = make_backend(), make_backend()
    for seed in range(3):
        assert one.step(random_batch(seed)) == two.step(random_batch(seed))
    assert same_weights(one, two)


def test_a_step_raises_what_was_good_and_lowers_what_was_bad():
    backend = make_backend(schedule="constant", warmup_steps=0, learning_rate=1e-2)
    good, bad = make_row([5, 6], [7]), make_row([8, 9], [10])
    before = backend.logprobs([good, bad])
    rows = [replace(row, logprobs=own) for row, own in zip((good, bad), before, strict=True)]
    metrics = backend.step([TrainingRow(row=rows[0], advantage=1.0), TrainingRow(row=rows[1], advantage=-1.0)])
    after = backend.logprobs([good, bad])
    assert after[0][2] > before[0][2]
    assert after[1][2] < before[1][2]
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert metrics.approx_kl == pytest.approx(0.0, abs=1e-6)
    assert (metrics.num_rows, metrics.num_tokens) == (2, 2)


def test_the_step_does_not_depend_on_the_micro_batches():
    whole, split = make_backend(), make_backend(max_tokens_per_micro_batch=1)
    batch = random_batch(0, num_rows=9)
    one, many = whole.step(batch), split.step(batch)
    assert (one.num_micro_batches, many.num_micro_batches) == (1, 9)
    for name, value in one.as_dict().items():
        if name != "num_micro_batches":
            assert many.as_dict()[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    # Plain SGD differences would be of rounding size; AdamW's first step divides by the gradient's own size.
    first, second = whole.state().tensors, split.state().tensors
    for name in first:
        if name.startswith("optimizer.exp_avg."):
            torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-6)


def test_padding_changes_no_log_prob():
    backend = make_backend()
    short, long = make_row([5, 6], [7, 8]), make_row(list(range(10, 40)), [50, 51])
    alone = backend.logprobs([short])[0]
    padded = backend.logprobs([short, long])[0]
    np.testing.assert_allclose(alone, padded, atol=1e-5)


def test_log_probs_agree_with_a_plain_forward_of_transformers():
    row = make_row([5, 6, 7], [8, 9])
    found = make_backend(temperature=0.5).logprobs([row])[0]
    model = AutoModelForCausalLM.from_pretrained(tiny_folder())
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits[0].double() / 0.5
    expected = torch.log_softmax(scores, dim=-1)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([0, 0, 0, float(expected[2, 8]), float(expected[3, 9])], abs=1e-4)


def test_log_probs_come_in_the_order_of_the_rows():
    backend = make_backend(max_tokens_per_micro_batch=16)
    rows = [item.row for item in random_batch(4, num_rows=8)]
    together = backend.logprobs(rows)
    for row, found in zip(rows, together, strict=True):
        assert len(found) == len(row.token_ids)
        np.testing.assert_allclose(found, backend.logprobs([row])[0], atol=1e-5)


def test_a_resumed_backend_continues_bit_for_bit():
    straight = make_backend()
    for seed in range(2):
        straight.step(random_batch(seed))
    saved = straight.state()
    expected = [straight.step(random_batch(seed)) for seed in (2, 3)]
    resumed = make_backend()
    resumed.step(random_batch(99))
    resumed.load_state(saved)
    assert resumed.steps_done == 2
    assert [resumed.step(random_batch(seed)) for seed in (2, 3)] == expected
    assert same_weights(straight, resumed)
    first, second = straight.state(), resumed.state()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_a_state_before_the_first_step_resumes_too():
    fresh, other = make_backend(), make_backend()
    other.step(random_batch(0))
    other.load_state(fresh.state())
    assert other.step(random_batch(1)) == fresh.step(random_batch(1))
    assert same_weights(fresh, other)


def test_the_state_carries_the_random_generator():
    backend = make_backend()
    saved = backend.state()
    expected = torch.rand(3)
    backend.load_state(saved)
    assert torch.equal(torch.rand(3), expected)


def test_the_state_of_another_model_is_refused(tmp_path):
    build_tiny_model(tmp_path / "other", corpus=QUESTIONS, seed=0, shape=TinyModelShape(hidden_size=32, num_layers=1))
    other = LocalBackend(tmp_path / "other", SETTINGS)
    backend = make_backend()
    before = backend.snapshot()
    with pytest.raises(ConfigError, match="belongs to another model"):
        backend.load_state(other.state())
    wrong_shape = {name: tensor[:1] if tensor.ndim else tensor for name, tensor in backend.state().tensors.items()}
    with pytest.raises(ConfigError, match="belongs to another model"):
        backend.load_state(BackendState(tensors=wrong_shape, numbers={"steps_done": 0}))
    after = backend.snapshot()
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


def test_a_snapshot_is_a_copy_and_names_what_is_tied():
    backend = make_backend()
    snapshot = backend.snapshot()
    kept = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    backend.step(random_batch(0))
    assert all(torch.equal(snapshot.tensors[name], kept[name]) for name in kept)
    assert snapshot.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert not snapshot.tied.keys() & snapshot.tensors.keys()


def test_a_snapshot_loads_into_a_fresh_model():
    backend = make_backend()
    backend.step(random_batch(0))
    snapshot = backend.snapshot()
    model = AutoModelForCausalLM.from_pretrained(tiny_folder())
    found = model.load_state_dict(snapshot.tensors, strict=False)
    assert found.missing_keys == list(snapshot.tied)
    assert torch.equal(model.state_dict()["lm_head.weight"], snapshot.tensors["model.embed_tokens.weight"])


def test_a_step_that_is_not_finite_changes_nothing():
    backend = make_backend()
    backend.step(random_batch(0))
    before = backend.state()
    spoilt = [TrainingRow(row=item.row, advantage=1e38) for item in random_batch(1)]
    with pytest.raises(InternalError, match="not finite, no weight was changed"):
        backend.step(spoilt)
    after = backend.state()
    assert before.numbers == after.numbers
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    assert math.isfinite(backend.step(random_batch(2)).loss)


def test_the_schedule_follows_the_steps():
    backend = make_backend(learning_rate=3.0e-3, warmup_steps=2, total_steps=6)
    rates = [backend.step(random_batch(seed)).learning_rate for seed in range(6)]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 2.25e-3, 1.5e-3, 0.75e-3])


def test_gradients_are_clipped_to_the_bound():
    free, clipped = make_backend(max_grad_norm=0.0), make_backend(max_grad_norm=1e-6)
    assert free.step(random_batch(0)).grad_norm == clipped.step(random_batch(0)).grad_norm
    name = "optimizer.exp_avg.model.norm.weight"
    assert clipped.state().tensors[name].abs().max() < free.state().tensors[name].abs().max() * 1e-3


def test_a_batch_that_teaches_nothing_is_refused():
    backend = make_backend()
    with pytest.raises(InvalidInputError, match="no sampled token"):
        backend.step([])
    with pytest.raises(InvalidInputError, match="row 0 has advantage nan"):
        backend.step([TrainingRow(row=make_row([5], [6]), advantage=math.nan)])
    with pytest.raises(InvalidInputError, match="the model's context is 64"):
        backend.step([TrainingRow(row=make_row([5] * 70, [6]), advantage=1.0)])


def test_a_row_without_sampled_tokens_may_be_among_others():
    backend = make_backend(max_tokens_per_micro_batch=1)
    metrics = backend.step([*random_batch(0), TrainingRow(row=make_row([5, 6, 7], []), advantage=0.0)])
    assert metrics.num_rows == 7


def test_greedy_sampling_cannot_be_trained_on():
    with pytest.raises(ConfigError, match="must be above 0"):
        make_backend(temperature=0.0)


def test_the_export_is_the_current_model(tmp_path):
    backend = make_backend()
    backend.step(random_batch(0))
    backend.export(tmp_path / "final")
    exported = LocalBackend(tmp_path / "final", SETTINGS)
    assert same_weights(backend, exported)
