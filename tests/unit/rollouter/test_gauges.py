import pytest

from services.rollouter.gauges import Gauges


def test_rates_are_over_the_window():
    gauges = Gauges(now=0.0)
    gauges.note_work(True, now=1.0)
    assert gauges.sample(now=2.0, num_tokens=300) == {"tokens_per_second": 150.0, "wait_share": 0.5}
    gauges.note_work(True, now=3.0)
    gauges.note_work(False, now=3.5)
    gauges.note_work(False, now=3.8)
    rates = gauges.sample(now=4.0, num_tokens=300)
    assert rates == {"tokens_per_second": 75.0, "wait_share": pytest.approx(1.5 / 4)}


def test_old_samples_leave_the_window():
    gauges = Gauges(now=0.0)
    for second in range(1, 8):
        rates = gauges.sample(now=float(second), num_tokens=100)
    assert rates == {"tokens_per_second": 0.0, "wait_share": 1.0}
