"""A scorer that takes its time and gives rewards that differ: steps come at a steady pace and change weights."""

from __future__ import annotations

import time
import zlib

SECONDS = 0.012
"""Time of one score; with one worker it bounds how fast a run can go."""


def paced(completion: str, **_task: object) -> float:
    """Give 0 or 1 by the text alone, after a while."""
    time.sleep(SECONDS)
    return float(zlib.crc32(completion.encode()) % 2)
