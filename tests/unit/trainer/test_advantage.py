import math

import numpy as np
import pytest

from services.common.errors import ConfigError, InvalidInputError
from services.common.types import MAX_ABS_REWARD
from services.trainer.advantage import group_advantages, grpo_advantages, has_signal


def test_grpo_subtracts_the_mean_and_divides_by_the_sample_deviation():
    # mean 0.5, deviations -0.5 and 0.5, sample standard deviation sqrt((4 * 0.25) / 3) = sqrt(1 / 3)
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert grpo_advantages([0.0, 1.0, 1.0, 0.0]) == pytest.approx([-expected, expected, expected, -expected], rel=1e-12)


def test_grpo_without_normalisation_is_the_distance_from_the_mean():
    assert grpo_advantages([0.0, 0.0, 3.0], norm_by_std=False) == [-1.0, -1.0, 2.0]


@pytest.mark.parametrize(
    "rewards",
    [
        [1.0, 1.0, 1.0],
        [0.1 + 0.2, 0.3, 0.3],
        [1 / 3, 0.33333334, 0.33333334],
        [1e6 * (1 - 1e-12), 1e6],
        [0.7],
        [],
    ],
)
def test_equal_rewards_give_exactly_zero(rewards):
    assert grpo_advantages(rewards) == [0.0] * len(rewards)
    assert not has_signal(rewards)


def test_a_small_but_real_difference_is_signal():
    assert has_signal([0.0, 1e-5])
    assert grpo_advantages([0.0, 1e-5])[1] > 0.5


def test_groups_may_have_different_sizes():
    found = group_advantages([[0.0, 1.0], [5.0], [0.0, 0.0, 3.0]], norm_by_std=False)
    assert found == [[-0.5, 0.5], [0.0], [-1.0, -1.0, 2.0]]


def test_advantages_of_a_group_sum_to_zero():
    assert sum(grpo_advantages([0.1, 0.7, 0.2, 0.9, 0.9])) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_the_largest_rewards_give_advantages_that_float32_holds(norm_by_std):
    rewards = [MAX_ABS_REWARD, -MAX_ABS_REWARD, MAX_ABS_REWARD, 0.0]
    found = np.array(grpo_advantages(rewards, norm_by_std=norm_by_std), dtype=np.float32)
    assert np.isfinite(found).all()
    assert found[0] > 0 > found[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.7e308, -1e39, 1.1e6])
def test_a_reward_that_is_no_number_or_too_large_is_refused(bad):
    with pytest.raises(InvalidInputError, match="reward 1 of the group"):
        grpo_advantages([0.0, bad])


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ConfigError, match="'gae'; use one of grpo"):
        group_advantages([[1.0]], estimator="gae")
