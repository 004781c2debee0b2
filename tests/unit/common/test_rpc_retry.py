import pytest

from services.common.errors import FencedError, OverloadedError, UnavailableError
from services.common.rpc.retry import Backoff, retrying

QUICK = Backoff(initial_seconds=0.001, max_seconds=0.002)


class Flaky:
    """Fails `failures` times, then answers."""

    def __init__(self, failures, error):
        self.failures = failures
        self.error = error
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "answer"


@pytest.mark.parametrize("error", [UnavailableError("gone"), OverloadedError("full")])
async def test_a_retryable_failure_is_tried_again(error):
    call = Flaky(3, error)
    assert await retrying(call, deadline_seconds=5, backoff=QUICK) == "answer"
    assert call.calls == 4


async def test_any_other_failure_is_raised_at_once():
    call = Flaky(3, FencedError("replaced"))
    with pytest.raises(FencedError):
        await retrying(call, deadline_seconds=5, backoff=QUICK)
    assert call.calls == 1


async def test_the_last_error_is_raised_when_time_is_up():
    call = Flaky(10**9, UnavailableError("gone"))
    with pytest.raises(UnavailableError, match="gone"):
        await retrying(call, deadline_seconds=0.05, backoff=QUICK)
    assert call.calls > 1


def test_pauses_grow_to_their_bound_and_differ():
    backoff = Backoff(initial_seconds=0.1, max_seconds=2.0, multiplier=2.0)
    for tries, bound in [(1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (100_000, 2.0)]:
        pauses = {backoff.pause(tries) for _ in range(20)}
        assert all(bound / 2 <= pause <= bound for pause in pauses)
        assert len(pauses) > 1
