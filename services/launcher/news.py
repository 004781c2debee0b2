"""What people should hear of while a run goes on: rollouters that come, go or fall silent, a trainer that stops.

Each thing is told once when it begins and once when it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.standing import LEFT, SILENT, describe_trainer, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.common.types import RunStats


class News:
    """Compares each look at a run with the one before.

    Example:
        news = News(own_rollouters=("rollouter-0",))
        for line in news.since_last(stats):
            screen.say(line)
    """

    def __init__(self, *, own_rollouters: tuple[str, ...]) -> None:
        """Know of nothing.

        Args:
            own_rollouters: names of those that the launcher keeps running; their deaths are its supervisor's to tell.
        """
        self._own = frozenset(own_rollouters)
        self._states: dict[str, str] = {}
        self._trainer_stopped = False

    def since_last(self, stats: RunStats) -> list[str]:
        """Return a line for everything that is new."""
        lines = list(self._rollouters(stats))
        stopped = describe_trainer(stats)
        if stopped and not self._trainer_stopped:
            lines.append(stopped)
        elif self._trainer_stopped and not stopped:
            lines.append("the trainer consumes again")
        self._trainer_stopped = bool(stopped)
        return lines

    def _rollouters(self, stats: RunStats) -> Iterator[str]:
        """What became of rollouters that came by themselves."""
        states: dict[str, str] = {}
        for report in stats.replicas:
            replica_id = report.status.replica_id
            if report.status.service != "rollouter" or replica_id.rpartition("-")[0] in self._own:
                continue
            before, state = self._states.get(replica_id), state_of(report, stats)
            states[replica_id] = state
            if state == before:
                continue
            if state == LEFT:
                yield f"rollouter {replica_id} left"
            elif state == SILENT:
                yield (
                    f"rollouter {replica_id} is silent for {report.age_seconds:.0f} s: it died or hangs; "
                    "what it held is given to others"
                )
            elif before is None:
                yield f"rollouter {replica_id} joined"
            elif before == SILENT:
                yield f"rollouter {replica_id} is back"
        self._states = states
