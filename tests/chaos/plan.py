"""What goes wrong in a run, decided beforehand from a seed: the same seed makes the same plan.

A plan is a list of events. Each is due after some steps or some seconds, whichever comes first; some then wait for a
weak instant (`Moment`), such as a checkpoint that is being written. The kinds of events are drawn like cards from a
deck, so that a run of some length meets nearly all of them. The run's settings follow from the seed too.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_SECONDS = 3.0
"""Time after which the work of a silent rollouter is given to another."""
HANG_SECONDS = 34.0
"""A trainer that is frozen for so long is replaced by the launcher."""

SLOW_FROM_KILLS = 25
"""Plans of fewer blows leave out the kinds of events that take half a minute each."""

_CALM_STEPS = 20
_PATIENCE_SECONDS = 20.0


class Action(StrEnum):
    """What is done to the targets."""

    KILL = "kill"
    """SIGKILL."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after a while."""
    RESTART = "restart"
    """SIGTERM, which Redis answers by a clean end; the launcher starts it again."""
    WIPE = "wipe"
    """SIGKILL of all targets, and Redis comes back empty."""
    FLUSH = "flush"
    """Redis forgets everything and goes on running."""
    SNAPSHOT = "snapshot"
    """Redis' files are copied for a later rollback; nobody is hurt."""
    ROLLBACK = "rollback"
    """SIGKILL of all targets, and Redis comes back with the files of the last snapshot."""
    TEAR = "tear"
    """SIGKILL of all targets, and Redis' log has lost its end, as when the machine dies before it reached the disk."""
    RIVAL = "rival"
    """A second trainer takes the run over while the first is frozen; then the first is killed and a third comes."""
    REBOOT = "reboot"
    """SIGKILL of the launcher, which takes everything along; the run is resumed by the same command."""


class Moment(StrEnum):
    """An instant at which a death is most likely to do harm."""

    CHECKPOINT = "checkpoint"
    """A checkpoint is being written."""
    VERSION = "version"
    """A version number is being written."""
    PUT = "put"
    """Redis was given a trajectory that no script has taken yet."""
    COMMIT = "commit"
    """Redis has applied a commit that nobody was told of yet."""
    LEASE = "lease"
    """Redis has leased a batch that the trainer does not have yet."""
    FINAL = "final"
    """The final model is being written."""
    LEDGER = "ledger"
    """The final account is being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that goes wrong."""

    kind: str
    """Name of its card in the deck."""
    action: Action
    """What is done."""
    targets: tuple[str, ...]
    """To whom, in this order: `redis`, `queue`, `reward`, `scorer`, `trainer`, `rollouter-0` and so on,
    or `launcher`."""
    after_steps: int = 0
    """Due once so many steps were reported since the event before ..."""
    after_seconds: float = 0.0
    """... or after so long, whichever comes first."""
    moment: Moment | None = None
    """The weak instant that is then waited for, with a bound; `None` strikes at once."""
    delay_seconds: float = 0.0
    """Pause between the instant and the blow."""
    num_bytes: int = 0
    """How much of the log a tear takes."""
    seconds: float = 0.0
    """How long a stop lasts, or a rival lives beside the frozen trainer."""
    hold: bool = False
    """Whether the next event waits for the end of this one's stop; a rival is frozen until it has been replaced."""

    @property
    def hits(self) -> int:
        """Blows that it counts for."""
        return 0 if self.action is Action.SNAPSHOT else len(self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is decided before a run."""

    seed: int
    """What it was made from ..."""
    kills: int
    """... and for how many blows at least."""
    settings: dict[str, Any]
    """The run's configuration as `section.key`."""
    events: tuple[Event, ...]
    """What goes wrong, in order."""
    from_start: bool
    """Whether the first event may come before the first step."""

    @property
    def replicas(self) -> int:
        """Rollouters of the run."""
        return int(self.settings["rollout.replicas"])

    @property
    def replay(self) -> str:
        """The one command that does the same again."""
        return f"make chaos SEED={self.seed} KILLS={self.kills} RUNS=1"

    def as_records(self) -> list[dict[str, Any]]:
        """The plan as lines for `events.jsonl`: the run, then each planned event."""
        head = {
            "record": "run",
            "seed": self.seed,
            "kills": self.kills,
            "from_start": self.from_start,
            "replay": self.replay,
            "settings": self.settings,
        }
        planned = [{"record": "planned", "event": index, **asdict(event)} for index, event in enumerate(self.events)]
        return [head, *planned]


def make_plan(seed: int, *, kills: int) -> Plan:
    """Decide a run.

    Args:
        seed: any number; neighbours differ in their settings.
        kills: blows wanted at least.
    """
    settings = _settings(seed)
    dice = random.Random(f"{seed}/events")
    deck = _Deck(dice, replicas=settings["rollout.replicas"], slow=kills >= SLOW_FROM_KILLS)
    events: list[Event] = []
    while sum(event.hits for event in events) < kills:
        events.append(_timed(deck.draw(), dice))
    events = _with_snapshots(events, dice)
    events.append(deck.at_the_end())
    # No event waits for more steps than it says; what is done while a blow falls comes on top.
    settings["trainer.total_steps"] = _CALM_STEPS + sum(event.after_steps for event in events)
    return Plan(seed=seed, kills=kills, settings=settings, events=tuple(events), from_start=dice.random() < 0.25)


def _settings(seed: int) -> dict[str, Any]:
    """Draw the configuration; what matters most goes round with the seed, so that few runs meet it all."""
    dice = random.Random(f"{seed}/settings")
    max_staleness = seed % 3
    return {
        "run.seed": seed,
        "async.max_staleness": max_staleness,
        "async.updates_per_version": 1 + seed % 2,
        "async.partial_rollout": seed // 2 % 2 == 0,
        "async.on_stale": ("refill", "drop", "wait")[seed // 3 % 3],
        "rollout.replicas": dice.choice((2, 2, 3)),
        "trainer.groups_per_step": dice.choice((2, 3, 4)),
        "trainer.checkpoint_every": dice.choice((1, 2, 5)),
        "trainer.keep_checkpoints": dice.choice((2, 3)),
        "queue.append_fsync": dice.choice(("always", "everysec")),
        "queue.lease_seconds": LEASE_SECONDS,
        "validation.size": dice.choice((0, 4)),
        "validation.every": dice.choice((0, 20)),
    }


def _timed(event: Event, dice: random.Random) -> Event:
    """Say when an event is due after the one before: mostly while that one still hurts, else when all goes well."""
    seconds = _PATIENCE_SECONDS if dice.random() < 0.3 else round(dice.uniform(0.5, 4.0), 2)
    return replace(event, after_steps=dice.randint(1, 12), after_seconds=seconds)


def _with_snapshots(events: list[Event], dice: random.Random) -> list[Event]:
    """Put a snapshot some events before each rollback."""
    found = list(events)
    for rollback in [event for event in events if event.action is Action.ROLLBACK]:
        place = next(index for index, event in enumerate(found) if event is rollback)
        snapshot = Event(kind="snapshot", action=Action.SNAPSHOT, targets=("redis",), after_seconds=0.5)
        found.insert(max(0, place - dice.randint(1, 4)), snapshot)
    return found


class _Deck:
    """The kinds of events, drawn in random order; shuffled anew when all were drawn."""

    def __init__(self, dice: random.Random, *, replicas: int, slow: bool) -> None:
        self._dice = dice
        self._rollouters = tuple(f"rollouter-{index}" for index in range(replicas))
        self._roles = ("redis", "queue", "reward", "trainer", *self._rollouters)
        self._cards: list[Callable[[], Event]] = []
        self._slow: list[Callable[[], Event]] = [self._replaced, self._rival] if slow else []
        dice.shuffle(self._slow)

    def draw(self) -> Event:
        """Take the next card."""
        if not self._cards:
            common = [
                self._one, self._one, self._pair, self._trainer_and_redis, self._at_checkpoint, self._at_checkpoint,
                self._at_version, self._at_put, self._at_put, self._at_commit, self._at_lease, self._pause,
                self._frozen_rollouter, self._restart, self._wipe, self._wipe_without_trainer, self._flush,
                self._rollback, self._rollback_with_trainer, self._all, self._reboot,
                self._tear, self._tear_with_trainer,
            ]  # fmt: skip
            # Each slow one comes at most once in a run.
            self._cards = common + [self._slow.pop() for _ in self._slow[:1]]
            self._dice.shuffle(self._cards)
        return self._cards.pop()()

    def at_the_end(self) -> Event:
        """Make the last event: the trainer dies while it finishes."""
        moment = self._dice.choice((Moment.FINAL, Moment.LEDGER))
        return Event(kind=f"at_{moment}", action=Action.KILL, targets=("trainer",), moment=moment, delay_seconds=0.0)

    def _kill(self, kind: str, targets: tuple[str, ...], moment: Moment | None = None) -> Event:
        delay = round(self._dice.choice((0.0, self._dice.uniform(0.0, 0.03))), 4) if moment else 0.0
        return Event(kind=kind, action=Action.KILL, targets=targets, moment=moment, delay_seconds=delay)

    def _one(self) -> Event:
        return self._kill("one", (self._dice.choice((*self._roles, "scorer")),))

    def _pair(self) -> Event:
        return self._kill("pair", tuple(self._dice.sample(self._roles, 2)))

    def _all(self) -> Event:
        return self._kill("all", tuple(self._dice.sample(self._roles, len(self._roles))))

    def _trainer_and_redis(self) -> Event:
        return self._kill("trainer_and_redis", tuple(self._dice.sample(("trainer", "redis"), 2)))

    def _at_checkpoint(self) -> Event:
        targets = self._dice.choice((("trainer",), ("trainer",), ("redis",), ("trainer", "redis")))
        return self._kill("at_checkpoint", targets, Moment.CHECKPOINT)

    def _at_version(self) -> Event:
        return self._kill("at_version", ("trainer",), Moment.VERSION)

    def _at_put(self) -> Event:
        rollouter = self._dice.choice(self._rollouters)
        targets = self._dice.choice((("queue",), ("redis",), (rollouter,), ("queue", "redis")))
        return self._kill("at_put", targets, Moment.PUT)

    def _at_commit(self) -> Event:
        targets = self._dice.choice((("trainer",), ("queue",), ("redis",), ("trainer", "queue")))
        return self._kill("at_commit", targets, Moment.COMMIT)

    def _at_lease(self) -> Event:
        return self._kill("at_lease", self._dice.choice((("trainer",), ("queue",), ("redis",))), Moment.LEASE)

    def _stop(self, kind: str, target: str, seconds: float, *, hold: bool) -> Event:
        return Event(kind=kind, action=Action.STOP, targets=(target,), seconds=round(seconds, 2), hold=hold)

    def _pause(self) -> Event:
        return self._stop("pause", self._dice.choice(self._roles), self._dice.uniform(0.3, 3.0), hold=False)

    def _frozen_rollouter(self) -> Event:
        seconds = LEASE_SECONDS * self._dice.uniform(1.3, 2.5)
        return self._stop("frozen_rollouter", self._dice.choice(self._rollouters), seconds, hold=False)

    def _replaced(self) -> Event:
        return self._stop("frozen_trainer_is_replaced", "trainer", HANG_SECONDS, hold=True)

    def _rival(self) -> Event:
        seconds = round(self._dice.uniform(0.0, 4.0), 2)
        hold = self._dice.random() < 0.5
        return Event(kind="rival", action=Action.RIVAL, targets=("trainer",), seconds=seconds, hold=hold)

    def _restart(self) -> Event:
        return Event(kind="restart", action=Action.RESTART, targets=("redis",))

    def _wipe(self) -> Event:
        return Event(kind="wipe", action=Action.WIPE, targets=("redis",))

    def _wipe_without_trainer(self) -> Event:
        return Event(kind="wipe_without_trainer", action=Action.WIPE, targets=("trainer", "redis"))

    def _flush(self) -> Event:
        return Event(kind="flush", action=Action.FLUSH, targets=("redis",))

    def _tear(self) -> Event:
        num_bytes = int(2 ** self._dice.uniform(0.0, 18.0))
        return Event(kind="tear", action=Action.TEAR, targets=("redis",), num_bytes=num_bytes)

    def _tear_with_trainer(self) -> Event:
        return replace(self._tear(), kind="tear_with_trainer", targets=("trainer", "redis"))

    def _reboot(self) -> Event:
        return Event(kind="reboot", action=Action.REBOOT, targets=("launcher",))

    def _rollback(self) -> Event:
        return Event(kind="rollback", action=Action.ROLLBACK, targets=("redis",))

    def _rollback_with_trainer(self) -> Event:
        return Event(kind="rollback_with_trainer", action=Action.ROLLBACK, targets=("trainer", "redis"))
