"""What a replica measures of itself: rates over the last seconds, sampled once per heartbeat."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_WINDOW_SAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Totals at one moment."""

    time: float
    """Seconds."""
    num_tokens: int
    """Tokens sampled so far."""
    idle_seconds: float
    """Seconds without work so far, while there could have been some."""


class Gauges:
    """Turns growing totals into rates over a sliding window of a few heartbeats.

    Example:
        gauges = Gauges(now=0.0)
        gauges.note_work(True, now=1.0)
        gauges.sample(now=2.0, num_tokens=300)  # {"tokens_per_second": 150.0, "wait_share": 0.5}
    """

    def __init__(self, *, now: float) -> None:
        """Start without work."""
        self._samples = deque([_Sample(time=now, num_tokens=0, idle_seconds=0.0)], maxlen=_WINDOW_SAMPLES)
        self._idle_seconds = 0.0
        self._idle_since: float | None = now

    def note_work(self, working: bool, *, now: float) -> None:
        """Say that the replica has work from now on, or has none."""
        if working:
            self._idle_seconds = self._idle_total(now)
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def sample(self, *, now: float, num_tokens: int) -> dict[str, float]:
        """Return the rates since the oldest sample held, and hold this one."""
        oldest = self._samples[0]
        newest = _Sample(time=now, num_tokens=num_tokens, idle_seconds=self._idle_total(now))
        self._samples.append(newest)
        seconds = max(1e-9, newest.time - oldest.time)
        return {
            "tokens_per_second": (newest.num_tokens - oldest.num_tokens) / seconds,
            "wait_share": min(1.0, (newest.idle_seconds - oldest.idle_seconds) / seconds),
        }

    def _idle_total(self, now: float) -> float:
        """Seconds without work so far."""
        return self._idle_seconds + (0.0 if self._idle_since is None else now - self._idle_since)
