"""Waits for the weak instants of a run: files that are just being written, commands that Redis just executes."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tests.chaos.plan import Moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.stack import Stack

_POLL_SECONDS = 0.002
_SOCKET_SECONDS = 0.2
_COMMANDS = {
    Moment.PUT: (b'"SET"', b":payload:"),
    Moment.COMMIT: (b'"HINCRBY"', b':train:ledger" "commits"'),
    Moment.LEASE: (b'"ZADD"', b":train:leased"),
}


def wait_for(moment: Moment, stack: Stack, *, seconds: float) -> bool:
    """Wait for the instant; returns whether it came. Ends early when the run does."""
    deadline = time.monotonic() + seconds

    def is_late() -> bool:
        return time.monotonic() >= deadline or not stack.is_running

    if moment in _COMMANDS:
        return _wait_for_command(stack.redis_url(), _COMMANDS[moment], is_late)
    return _wait_for_file(moment, stack.run_directory, is_late)


def _wait_for_file(moment: Moment, folder: Path, is_late: Callable[[], bool]) -> bool:
    """Wait until a file that stands for the instant appears."""
    pattern = {
        Moment.CHECKPOINT: "checkpoints/.staging-*",
        Moment.VERSION: ".version.json.new",
        Moment.FINAL: ".final.*",
        Moment.LEDGER: ".ledger.json.new",
    }[moment]
    before = set(folder.glob(pattern))
    while not is_late():
        if set(folder.glob(pattern)) - before:
            return True
        if moment in (Moment.FINAL, Moment.LEDGER) and (folder / "ledger.json").exists():
            # It went by between two looks.
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _wait_for_command(url: str, words: tuple[bytes, ...], is_late: Callable[[], bool]) -> bool:
    """Wait until Redis executes a command that holds all the words, also inside a script."""
    while not is_late():
        with suppress(OSError):
            if _watch(url, words, is_late):
                return True
        time.sleep(0.05)
    return False


def _watch(url: str, words: tuple[bytes, ...], is_late: Callable[[], bool]) -> bool:
    """Read what one connection's MONITOR tells, until it breaks, it is late, or the command came."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=_SOCKET_SECONDS) as connection:
        connection.sendall(f"AUTH {unquote(address.password or '')}\r\nMONITOR\r\n".encode())
        rest = b""
        while not is_late():
            try:
                chunk = connection.recv(65536)
            except TimeoutError:
                continue
            if not chunk:
                return False
            *lines, rest = (rest + chunk).split(b"\n")
            if any(all(word in line for word in words) for line in lines):
                return True
    return False
