import pytest

from services.common.errors import ConfigError
from services.trainer.schedule import learning_rate_at


def test_constant_stays():
    assert [learning_rate_at(step, base=2.0, schedule="constant") for step in (0, 1, 1000)] == [2.0, 2.0, 2.0]


def test_warm_up_rises_linearly_and_reaches_the_full_rate():
    rates = [learning_rate_at(step, base=4.0, schedule="constant", warmup_steps=3) for step in range(5)]
    assert rates == [1.0, 2.0, 3.0, 4.0, 4.0]


def test_linear_falls_to_nothing_at_the_last_step_and_stays_there():
    rates = [learning_rate_at(step, base=1.0, schedule="linear", total_steps=4) for step in (0, 1, 2, 3, 4, 9)]
    assert rates == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_cosine_is_half_way_down_in_the_middle():
    rates = [
        learning_rate_at(step, base=1.0, schedule="cosine", warmup_steps=2, total_steps=10) for step in (2, 6, 10, 11)
    ]
    assert rates == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-15)


def test_min_ratio_is_where_the_fall_ends():
    assert learning_rate_at(10, base=2.0, schedule="linear", total_steps=10, min_ratio=0.1) == pytest.approx(0.2)
    assert learning_rate_at(5, base=2.0, schedule="cosine", total_steps=10, min_ratio=0.5) == pytest.approx(1.5)


def test_a_warm_up_as_long_as_the_run_does_not_divide_by_zero():
    assert learning_rate_at(3, base=1.0, schedule="linear", warmup_steps=3, total_steps=3) == 1.0


def test_an_unknown_schedule_names_the_known_ones():
    with pytest.raises(ConfigError, match="'wavy'; use one of constant, linear, cosine"):
        learning_rate_at(0, base=1.0, schedule="wavy")
