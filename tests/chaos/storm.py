"""Carries a plan out against a running stack, and writes down what was planned and what happened.

`events.jsonl` holds the plan first (`run`, `planned`), then a line for each event as it happened (`happened`): when, at
which step, whom it met. An event whose target was not there within bounds meets nobody and counts nothing.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from tests.chaos.moments import wait_for
from tests.chaos.plan import Action, Moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.plan import Event, Plan
    from tests.chaos.stack import Stack

_START_SECONDS = 90.0
_MOMENT_SECONDS = 30.0
_TARGETS_SECONDS = 12.0
_RIVAL_SECONDS = 24.0
_TICK_SECONDS = 0.05
_ENDINGS = (Moment.FINAL, Moment.LEDGER)


class Storm:
    """One run under a plan.

    Example:
        storm = Storm(stack, plan, events_file=path, say=print)
        ended = storm.run(seconds=300.0)
    """

    def __init__(self, stack: Stack, plan: Plan, *, events_file: Path, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            stack: a started stack.
            plan: what is to happen.
            events_file: where it is written down.
            say: told a line about each event.
        """
        self._stack = stack
        self._plan = plan
        self._say = say
        self._began = time.monotonic()
        self._stopped: list[tuple[float, psutil.Process]] = []
        self._file = events_file.open("w")
        self._record(*plan.as_records())
        self.by_kind: Counter[str] = Counter()
        """Blows that met somebody, by kind of event."""
        self.by_action: Counter[str] = Counter()
        """The same by what was done."""
        self.by_target: Counter[str] = Counter()
        """The same by target."""
        self.left_behind: list[str] = []
        """Command lines of processes that outlived a killed launcher."""
        self.rivals: list[psutil.Popen] = []
        """Second trainers that took the run over for a while."""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def run(self, *, seconds: float) -> bool:
        """Do everything that is planned and wait for the end of the run; returns whether it ended in time."""
        deadline = self._began + seconds
        try:
            if not self._plan.from_start:
                self._wait(lambda: self._stack.step > 0, min(deadline, self._began + _START_SECONDS))
            for index, event in enumerate(self._plan.events):
                if not self._stack.is_running or time.monotonic() >= deadline:
                    self._record({"record": "not_reached", "event": index, "kind": event.kind})
                    continue
                self._until_due(event, deadline)
                self._strike(index, event, deadline)
            self._wait(lambda: False, deadline)
        finally:
            self._resume(float("inf"))
            self._record({"record": "end", "seconds": round(self.elapsed, 1), "exit_code": self._stack.exit_code})
            self._file.close()
        return not self._stack.is_running

    def _until_due(self, event: Event, deadline: float) -> None:
        """Wait for the steps or seconds of an event."""
        if event.moment in _ENDINGS:
            return
        target = self._stack.step + event.after_steps
        self._wait(lambda: self._stack.step >= target, min(deadline, time.monotonic() + event.after_seconds))

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition, a time or the end of the run; wakes up whoever was stopped for long enough."""
        while self._stack.is_running and time.monotonic() < deadline and not condition():
            self._resume(time.monotonic())
            time.sleep(_TICK_SECONDS)

    def _resume(self, now: float) -> None:
        """Send SIGCONT to those whose stop is over."""
        for due, process in list(self._stopped):
            if due <= now or now == float("inf"):
                self._stopped.remove((due, process))
                _send(process, signal.SIGCONT)

    def _strike(self, index: int, event: Event, deadline: float) -> None:
        """Do one event."""
        came = None
        if event.moment is not None:
            bound = deadline - time.monotonic() if event.moment in _ENDINGS else _MOMENT_SECONDS
            self._resume(float("inf"))
            came = wait_for(event.moment, self._stack, seconds=bound)
            time.sleep(event.delay_seconds)
        met = self._act(event)
        for target in met:
            self.by_target[target] += 1
            self.by_action[event.action.value] += 1
            self.by_kind[event.kind] += 1
        step = self._stack.step
        self._record(
            {
                "record": "happened",
                "event": index,
                "kind": event.kind,
                "action": event.action,
                "met": met,
                "moment_came": came,
                "seconds": round(self.elapsed, 2),
                "step": step,
            }
        )
        where = f" at {event.moment}" if event.moment else ""
        whom = ", ".join(met) or "nobody"
        self._say(f"seed {self._plan.seed}: {self.elapsed:4.0f} s, step {step}: {event.kind}{where} met {whom}")
        if event.hold and event.action is Action.STOP:
            until = time.monotonic() + event.seconds
            self._wait(lambda: time.monotonic() >= until, deadline)

    def _act(self, event: Event) -> list[str]:
        """Do what the event says; returns the targets that were met."""
        stack = self._stack
        if event.action is Action.KILL:
            return self._signal(event.targets, signal.SIGKILL)
        if event.action is Action.STOP:
            return self._stop(event)
        if event.action is Action.RESTART:
            return self._signal(event.targets, signal.SIGTERM)
        if event.action is Action.FLUSH:
            # The queue knows how to reach it.
            return ["redis"] if stack.role("queue") and stack.flush_redis() else []
        if event.action is Action.RIVAL:
            return self._rival(event)
        if event.action is Action.REBOOT:
            self.left_behind += stack.reboot()
            # Checking data and model takes a while in which there is nobody to be met.
            stack.role("redis", seconds=_START_SECONDS)
            return ["launcher"]
        return self._replace_files(event)

    def _replace_files(self, event: Event) -> list[str]:
        """Copy, wipe, tear or roll back Redis' files, after the other targets were killed; returns whom it met."""
        stack = self._stack
        redis = stack.role("redis")
        if redis is None:
            return []
        met = self._signal([name for name in event.targets if name != "redis"], signal.SIGKILL)
        with suppress(psutil.Error):
            if event.action is Action.SNAPSHOT:
                return [] if stack.take_snapshot(redis) else met
            if event.action is Action.TEAR:
                stack.tear_redis_log(redis, num_bytes=event.num_bytes)
                return [*met, "redis"]
            stack.replace_redis_files(redis, snapshot=stack.snapshot if event.action is Action.ROLLBACK else None)
            return [*met, "redis"]
        return met

    def _signal(self, targets: tuple[str, ...] | list[str], number: signal.Signals) -> list[str]:
        """Signal all at once, when all run or it has taken too long; returns whom it met."""
        deadline = time.monotonic() + _TARGETS_SECONDS
        roles = self._stack.roles()
        while self._stack.is_running and time.monotonic() < deadline and not set(targets) <= set(roles):
            time.sleep(_TICK_SECONDS)
            roles = self._stack.roles()
        return [name for name in targets if name in roles and _send(roles[name], number)]

    def _stop(self, event: Event) -> list[str]:
        """Stop the target; it is woken by `_resume`."""
        process = self._stack.role(event.targets[0])
        if process is None or not _send(process, signal.SIGSTOP):
            return []
        self._stopped.append((time.monotonic() + event.seconds, process))
        return [event.targets[0]]

    def _rival(self, event: Event) -> list[str]:
        """Freeze the trainer, let a second one take over, and kill the first, so that the launcher brings a third."""
        first = self._stack.role("trainer")
        if first is None or not _send(first, signal.SIGSTOP):
            return []
        epoch = self._stack.epoch_on_disk()
        self.rivals.append(self._stack.start_rival())
        end = time.monotonic() + _RIVAL_SECONDS
        self._wait(lambda: self._stack.epoch_on_disk() != epoch, end)
        until = time.monotonic() + event.seconds
        self._wait(lambda: time.monotonic() >= until, end)
        if event.hold:
            _send(self.rivals[-1], signal.SIGSTOP)
        met = ["trainer"] if _send(first, signal.SIGKILL) else []
        if event.hold:
            epoch = self._stack.epoch_on_disk()
            self._wait(lambda: self._stack.epoch_on_disk() != epoch, time.monotonic() + _RIVAL_SECONDS)
            # It wakes up beside its successor, with all that it had in hand.
            self._stopped.append((time.monotonic() + 1.0, self.rivals[-1]))
        return met

    def _record(self, *records: dict[str, object]) -> None:
        """Write lines to the events file."""
        for record in records:
            self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    """Signal a process if it is still the one it was; returns whether it was there."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.send_signal(number)
    except psutil.Error:
        return False
    return True
