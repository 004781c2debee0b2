import math

import pytest
import torch

from services.trainer.loss import MAX_LOG_RATIO, ppo_clip_loss


def loss_of(ratios, advantages, *, mask=None, clip_low=0.2, clip_high=0.2, denominator=None):
    old = torch.full((1, len(ratios)), -2.0)
    new = (old + torch.tensor([ratios]).log()).requires_grad_()
    mask = torch.ones(1, len(ratios), dtype=torch.bool) if mask is None else torch.tensor([mask], dtype=torch.bool)
    terms = ppo_clip_loss(
        new,
        old,
        torch.tensor([advantages]),
        mask=mask,
        clip_low=clip_low,
        clip_high=clip_high,
        denominator=denominator or float(mask.sum()),
    )
    return terms, new


def test_the_loss_is_minus_the_smaller_of_plain_and_clipped_gain():
    # gains: 1.0; min(1.5, 1.2) * 2 = 2.4; 0.5, which is not raised; -1.1; min(-0.5, -0.8) = -0.8
    terms, _ = loss_of([1.0, 1.5, 0.5, 1.1, 0.5], [1.0, 2.0, 1.0, -1.0, -1.0])
    assert float(terms.loss.detach()) == pytest.approx(-(1.0 + 2.4 + 0.5 - 1.1 - 0.8) / 5, rel=1e-6)
    assert int(terms.clipped_sum) == 2


def test_bounds_may_differ_upwards_and_downwards():
    terms, _ = loss_of([2.0, 0.5], [1.0, -1.0], clip_low=0.1, clip_high=0.3)
    assert float(terms.loss.detach()) == pytest.approx(-(1.3 - 0.9) / 2, rel=1e-6)


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_has_ratio_times_advantage():
    terms, new = loss_of([1.5, 1.1], [1.0, 1.0])
    terms.loss.backward()
    assert new.grad[0].tolist() == pytest.approx([0.0, -1.1 / 2], rel=1e-6)


def test_the_denominator_is_given_and_not_counted():
    whole, _ = loss_of([1.0, 1.1, 0.9], [1.0, -2.0, 3.0])
    first, _ = loss_of([1.0], [1.0], denominator=3.0)
    rest, _ = loss_of([1.1, 0.9], [-2.0, 3.0], denominator=3.0)
    assert float((first.loss + rest.loss).detach()) == pytest.approx(float(whole.loss.detach()), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_at_a_masked_place_reaches_the_value_or_the_gradient(bad):
    mask = torch.tensor([[True, False]])
    clean = torch.tensor([[-1.0, -1.0]])
    dirty = torch.tensor([[-1.0, bad]])
    expected = ppo_clip_loss(clean, clean, torch.ones(1, 2), mask=mask, clip_low=0.2, clip_high=0.2, denominator=1.0)
    new = dirty.clone().requires_grad_()
    found = ppo_clip_loss(
        new,
        dirty,
        torch.tensor([[1.0, bad]]),
        mask=mask,
        clip_low=0.2,
        clip_high=0.2,
        denominator=1.0,
    )
    found.loss.backward()
    assert float(found.loss.detach()) == float(expected.loss)
    assert new.grad.tolist() == [[-1.0, 0.0]]
    assert float(found.kl_sum) == 0.0
    assert float(found.ratio_sum) == 1.0
    assert float(found.ratio_max) == 1.0


def test_the_metrics_are_sums_over_sampled_tokens():
    terms, _ = loss_of([2.0, 0.5, 9.0], [1.0, 1.0, 1.0], mask=[1, 1, 0])
    k3 = (2.0 - 1 - math.log(2.0)) + (0.5 - 1 - math.log(0.5))
    assert float(terms.kl_sum) == pytest.approx(k3, rel=1e-5)
    assert float(terms.ratio_sum) == pytest.approx(2.5, rel=1e-6)
    assert float(terms.ratio_max) == pytest.approx(2.0, rel=1e-6)
    assert int(terms.clipped_sum) == 1


def test_an_enormous_ratio_stays_finite():
    new = torch.tensor([[0.0]], requires_grad=True)
    terms = ppo_clip_loss(
        new,
        torch.tensor([[-500.0]]),
        torch.tensor([[-1.0]]),
        mask=torch.ones(1, 1),
        clip_low=0.2,
        clip_high=0.2,
        denominator=1.0,
    )
    terms.loss.backward()
    assert float(terms.loss.detach()) == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)
    assert math.isfinite(float(new.grad))


def test_an_advantage_per_row_reaches_every_token_of_the_row():
    old = torch.zeros(2, 3)
    terms = ppo_clip_loss(
        old, old, torch.tensor([[1.0], [-3.0]]), mask=torch.ones(2, 3), clip_low=0.2, clip_high=0.2, denominator=6.0
    )
    assert float(terms.loss) == pytest.approx(1.0)


def test_no_rows_give_a_loss_of_zero():
    empty = torch.zeros(0, 3)
    terms = ppo_clip_loss(empty, empty, torch.zeros(0, 1), mask=empty, clip_low=0.2, clip_high=0.2, denominator=1.0)
    assert float(terms.loss) == 0.0
    assert float(terms.ratio_max) == 0.0
