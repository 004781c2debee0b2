"""Translation of points in time: seconds since the epoch in memory, Timestamp on the wire."""

from __future__ import annotations

import math

from google.protobuf.timestamp_pb2 import Timestamp


def time_to_proto(seconds: float) -> Timestamp:
    """Return the wire form of seconds since the epoch."""
    whole = math.floor(seconds)
    nanos = round((seconds - whole) * 1e9)  # the fraction alone: seconds x 1e9 does not fit into a double's 53 bits
    return Timestamp(seconds=whole + nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def time_from_proto(stamp: Timestamp) -> float:
    """Return seconds since the epoch."""
    return float(stamp.seconds) + stamp.nanos / 1e9
