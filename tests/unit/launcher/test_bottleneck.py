"""The advice names the side that is waited for, and a key to change."""

import pytest

from services.launcher.bottleneck import advise


@pytest.mark.parametrize(
    ("trainer", "rollouters", "part"),
    [
        (0.7, 0.1, "rollouters are the bottleneck"),
        (0.7, None, "raise rollout.replicas"),
        (0.1, 0.7, "trainer is the bottleneck"),
        (0.7, 0.7, "raise async.max_staleness"),
        (0.1, 0.1, "Both sides are busy"),
        (0.1, None, "Both sides are busy"),
        (0.4, 0.4, "No side holds the other up"),
        (None, 0.4, "Not enough was measured"),
    ],
)
def test_who_waits_tells_who_is_waited_for(trainer, rollouters, part):
    assert part in advise(trainer_wait_share=trainer, rollouter_wait_share=rollouters)


def test_the_measured_shares_are_shown():
    assert "waited 70% of its time, the rollouters 10%" in advise(trainer_wait_share=0.7, rollouter_wait_share=0.1)
