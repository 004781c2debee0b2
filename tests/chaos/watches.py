"""What can only be seen while a run goes on: the checkpoints that the trainer removes again, and the moving ledger.

Each watch is a thread of its own and judges nothing. A checkpoint says what its commit consumed, whatever the queue and
the trainer claim at the end. The ledger must balance at every moment, not only when all is over.
"""

from __future__ import annotations

import asyncio
import json
import threading
import tomllib
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from services.common.clients.queue import QueueClient
from services.common.errors import HeadraceError
from services.common.rpc.channel import open_channel
from services.common.types import Partition, RunId

if TYPE_CHECKING:
    from pathlib import Path

    from services.common.types import TaskLedger

_CHECKPOINT_SECONDS = 0.01
_LEDGER_SECONDS = 0.5
_ANSWER_SECONDS = 3.0


class CheckpointWatch:
    """Collects the state of every checkpoint of a run while it goes on.

    Example:
        with CheckpointWatch(run_directory) as watch:
            ...
        states = watch.states
    """

    def __init__(self, run_directory: Path) -> None:
        """Watch a run that need not exist yet."""
        self._folder = run_directory / "checkpoints"
        self._seen: dict[tuple[str, int], dict[str, Any]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoint-watch", daemon=True)

    def __enter__(self) -> CheckpointWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    @property
    def states(self) -> list[dict[str, Any]]:
        """In order of appearance."""
        return list(self._seen.values())

    def _watch(self) -> None:
        while not self._ended.wait(_CHECKPOINT_SECONDS):
            self._look()

    def _look(self) -> None:
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                if path.name.startswith("step-"):
                    with suppress(OSError, ValueError):
                        self._note(path)

    def _note(self, path: Path) -> None:
        key = (path.name, path.stat().st_ino)
        if key not in self._seen:
            self._seen[key] = json.loads((path / "state.json").read_text())["run"]


class LedgerWatch:
    """Asks the queue for its ledger twice a second, whoever is just being killed.

    Example:
        with LedgerWatch(run_directory) as watch:
            ...
        assert not watch.unbalanced
    """

    def __init__(self, run_directory: Path) -> None:
        """Watch the queue of a run that need not exist yet."""
        self._run_directory = run_directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="ledger-watch", daemon=True)
        self.num_looks = 0
        """Answers so far."""
        self.unbalanced: list[str] = []
        """Answers that did not balance."""
        self.given_up: Counter[str] = Counter()
        """Training tasks given up by reason, over all that Redis forgot."""
        self._before: dict[str, int] = {}

    def __enter__(self) -> LedgerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _watch(self) -> None:
        while not self._ended.is_set():
            # Opened anew each time: a run that is resumed has other ports.
            with suppress(HeadraceError, OSError, ValueError, KeyError, TimeoutError):
                await self._look()
            await asyncio.sleep(_LEDGER_SECONDS)

    async def _look(self) -> None:
        address = tomllib.loads((self._run_directory / "config.toml").read_text())["queue"]["address"]
        run_id = RunId((self._run_directory / "run_id").read_text().strip())
        channel = open_channel(address)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                ledgers = await QueueClient(channel, run_id).get_ledger()
        finally:
            await channel.close(None)
        self.num_looks += 1
        self.unbalanced += [str(ledger) for ledger in ledgers if ledger.lost or ledger.trained_twice]
        self._note_given_up(next(ledger.tasks for ledger in ledgers if ledger.partition is Partition.TRAIN))

    def _note_given_up(self, tasks: TaskLedger) -> None:
        """Add up what grew since the look before; a Redis that lost its account begins anew."""
        now = {**tasks.dropped, "dead_lettered": tasks.dead_lettered, "filtered": tasks.filtered}
        for reason, number in now.items():
            self.given_up[reason] += max(0, number - self._before.get(reason, 0))
        self._before = now
