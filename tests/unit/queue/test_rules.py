"""The queue against the model, in random stories: see `story/` for the stories and `model.py` for the rules.

`HEADRACE_HYPOTHESIS=deep` tells thousands of new ones; `HEADRACE_STORY=<blob>` repeats the one that a failure named.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, reproduce_failure, settings
from hypothesis.stateful import get_state_machine_test

from tests.unit.queue.ports import InProcess, PersistentRedis, ServiceProcess
from tests.unit.queue.story.queue_story import QueueStory

IS_DEEP = os.environ.get("HEADRACE_HYPOTHESIS") == "deep"
BLOB = os.environ.get("HEADRACE_STORY", "")
MORE_STORIES, MORE_STEPS = (40, 2) if IS_DEEP else (1, 1)
TIMEOUT_SECONDS = 6 * 3600 if IS_DEEP else 600


def tell_stories(make_port, *, stories, steps, **attributes):
    machine = type("QueueStory", (QueueStory,), {"make_port": staticmethod(make_port), **attributes})
    tell = get_state_machine_test(
        machine,
        settings=settings(
            max_examples=stories * MORE_STORIES,
            stateful_step_count=steps * MORE_STEPS,
            deadline=None,
            derandomize=not IS_DEEP and not BLOB,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            # A failing story is printed as it is; making it shorter takes minutes.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    if BLOB:
        tell = reproduce_failure(hypothesis.__version__, BLOB.encode())(tell)
    tell()


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_queue_keeps_the_rules(redis_url):
    tell_stories(InProcess, stories=70, steps=50, redis_url=redis_url)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_a_queue_whose_process_is_killed_keeps_the_rules(redis_url):
    tell_stories(ServiceProcess, stories=8, steps=40, redis_url=redis_url)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_a_queue_whose_redis_loses_power_keeps_the_rules(tmp_path):
    power = PersistentRedis(tmp_path)
    try:
        tell_stories(InProcess, stories=15, steps=50, redis_url=power.url, power=power)
    finally:
        power.kill()
