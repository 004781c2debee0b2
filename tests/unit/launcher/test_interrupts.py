"""Ctrl-C: once to drain, twice to force."""

import asyncio
import os
import signal

import pytest

from services.launcher.interrupts import InterruptedByUserError, Interrupts


async def test_the_first_signal_drains_and_the_second_forces():
    interrupts = Interrupts()
    with interrupts.installed():
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(5):
            await interrupts.drain.wait()
        assert not interrupts.force.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await interrupts.force.wait()


async def test_work_goes_through_when_nobody_asks():
    async def work():
        return 5

    assert await Interrupts().unless_asked(work()) == 5


async def test_a_failure_of_the_work_leaves_as_itself():
    async def work():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await Interrupts().unless_asked(work())


async def test_asking_cancels_the_work():
    interrupts = Interrupts()
    ended = []

    async def work():
        interrupts.ask()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    with pytest.raises(InterruptedByUserError):
        await interrupts.unless_asked(work())
    assert ended == ["cancelled"]
