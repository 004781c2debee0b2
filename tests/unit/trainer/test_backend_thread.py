import asyncio
import threading

import pytest

from services.trainer.backend_thread import BackendThread


async def test_calls_run_one_after_the_other_in_one_other_thread():
    thread = BackendThread()
    running, most, names = [], [], set()

    def work(number):
        running.append(number)
        most.append(len(running))
        names.add(threading.current_thread().name)
        running.remove(number)
        return number

    assert await asyncio.gather(*(thread.run(work, number) for number in range(5))) == [0, 1, 2, 3, 4]
    assert max(most) == 1
    assert len(names) == 1
    assert names != {threading.current_thread().name}
    thread.close()


async def test_an_error_comes_back_to_the_caller():
    thread = BackendThread()

    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.run(fails)
    thread.close()
