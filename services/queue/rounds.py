"""Rounds: what is asked of Redis while it is being asked waits, and then goes there together, in one round trip.

    consumes      ask(): the commands of one caller, never split over two rounds
    waits for     the answers of the round that is on its way
    unblocked by  these answers, a failure of the connection, or the end of the round's time

The busier the service, the more calls share a round trip; an idle one sends each call at once.

Guarantees: calls are carried out in the order in which they came; each gets its own answers, error replies among them,
and nobody else's; a failure of the connection reaches every call of the round; a caller that leaves takes no other with
it. It knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

from services.common.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.connection import AbstractConnection

_MAX_WAITING = 4096
_MAX_CALLS = 64
_MAX_BYTES = 8 * 1024 * 1024
_RETRY_PAUSE_SECONDS = 0.05

Command = tuple[str | int | float | bytes, ...]
"""A command with its arguments."""


@dataclass(slots=True, frozen=True, eq=False)
class _Call:
    """What one caller asks."""

    commands: Sequence[Command]
    """In order."""
    num_bytes: int
    """Bulk bytes among them."""
    answers: asyncio.Future[list[Any]]
    """Done when the round is; cancelled when the caller left."""


class Rounds:
    """Round trips to one server, one at a time, each for all who wait.

    Example:
        answers = await rounds.ask([("SET", "a", b"1"), ("GET", "a")])
    """

    def __init__(self, pool: BlockingConnectionPool, *, round_seconds: float) -> None:
        """Use one connection of `pool`; a round may take `round_seconds`."""
        self._pool = pool
        self._round_seconds = round_seconds
        self._waiting: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._connection: AbstractConnection | None = None

    async def ask(self, commands: Sequence[Command], *, num_bytes: int = 0) -> list[Any]:
        """Have `commands` carried out; returns their answers, of which any may be an error reply.

        The caller bounds its wait.

        Args:
            commands: in order.
            num_bytes: bulk bytes among them, for the bound of a round.

        Raises:
            OverloadedError: too many wait already.
            Exception: of the client library, when the connection failed.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise OverloadedError(f"{_MAX_WAITING} calls wait for Redis; send fewer at once")
        loop = asyncio.get_running_loop()
        call = _Call(commands, num_bytes, loop.create_future())
        self._waiting.append(call)
        if self._task is None:
            # In no task group: a round serves callers that come and go, so no one of them may own it. It is bounded in
            # time, it hands every error to those who asked, and close() ends it.
            self._task = loop.create_task(self._run())
        return await call.answers

    async def close(self) -> None:
        """End the round that is on its way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Go round until nobody waits."""
        calls: list[_Call] = []
        try:
            while calls := self._next_calls():
                await self._go(calls)
        finally:
            self._task = None
            _fail([*calls, *self._waiting], redis_errors.ConnectionError("the connection was closed"))
            self._waiting.clear()

    def _next_calls(self) -> list[_Call]:
        """Take the next calls, as many as one round may hold."""
        calls: list[_Call] = []
        num_bytes = 0
        while self._waiting and len(calls) < _MAX_CALLS:
            if calls and num_bytes + self._waiting[0].num_bytes > _MAX_BYTES:
                break
            call = self._waiting.popleft()
            if not call.answers.done():
                calls.append(call)
                num_bytes += call.num_bytes
        return calls

    async def _go(self, calls: list[_Call]) -> None:
        """Carry out one round and answer each call."""
        try:
            async with asyncio.timeout(self._round_seconds):
                await self._exchange(calls)
        except Exception as error:  # whatever it is, those who asked have to know
            _fail(calls, error)

    async def _exchange(self, calls: list[_Call]) -> None:
        """Carry the calls out; those without an answer once more, when the connection that was kept is dead."""
        # Kept, since to give it back and get it again costs as much as a small call. Its pool closes it in the end.
        if self._connection is None:
            self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        # Whatever interrupts a conversation, the library closes the connection, so no answer is left in it unread; the
        # next one opens it again.
        try:
            await _converse(self._connection, calls)
        except (redis_errors.ConnectionError, OSError):
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)
            await _converse(self._connection, [call for call in calls if not call.answers.done()])


async def _converse(connection: AbstractConnection, calls: list[_Call]) -> None:
    """Send the calls and read their answers."""
    await _send(connection, calls)
    for call in calls:
        answers = [await _answer(connection) for _ in call.commands]
        if not call.answers.done():
            call.answers.set_result(answers)


async def _send(connection: AbstractConnection, calls: list[_Call]) -> None:
    """Send all calls; one that cannot be written as commands fails alone and leaves the list."""
    packed: list[bytes] = []
    for call in list(calls):
        try:
            packed += connection.pack_commands(call.commands)
        except (redis_errors.DataError, ValueError) as error:
            _fail([call], error)
            calls.remove(call)
    await connection.send_packed_command(packed)


async def _answer(connection: AbstractConnection) -> Any:  # noqa: ANN401 - an answer is whatever the server says
    """Read one answer; an error reply is an answer, a broken connection is not."""
    try:
        return await connection.read_response()
    except redis_errors.ResponseError as error:
        return error


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    """Tell those who still wait."""
    for call in calls:
        if not call.answers.done():
            call.answers.set_exception(error)
