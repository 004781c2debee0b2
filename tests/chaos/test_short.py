"""One short storm over the whole system; `make chaos` is the long one."""

import pytest

from tests.chaos.campaign import run_plan
from tests.chaos.plan import make_plan

_SEED = 650
_KILLS = 20
_SECONDS = 440.0


@pytest.mark.e2e
@pytest.mark.timeout(475)
def test_twenty_kills_lose_nothing_train_nothing_twice_and_break_no_bound(tmp_path):
    # A few more are planned: a target may be away when its turn comes.
    plan = make_plan(_SEED, kills=_KILLS + 2)
    result = run_plan(plan, tmp_path, seconds=_SECONDS, say=print)
    assert not result.violations, f"{result.describe()}\n{result.events_file.read_text()}"
    assert result.kills >= _KILLS, result.events_file.read_text()
