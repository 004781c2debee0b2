from __future__ import annotations

import subprocess
import sys

import pytest

# Pages that are faulted in by a hundred large blocks, each freed before the next. In a process of its own, since the
# setting stays.
COUNT_FAULTS = """
import resource, sys
from services.queue.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(77)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def block():
    bytearray(b"x") * (20 * 2**20)
block()
before = faults()
for _ in range(100):
    block()
print(faults() - before)
"""


def count_faults(how):
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this C library has no mallopt")
    return int(done.stdout)


def test_large_blocks_that_were_freed_are_used_again_without_page_faults():
    assert count_faults("keep") < 1000 < count_faults("not")
