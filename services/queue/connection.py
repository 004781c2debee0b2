"""The connection to Redis or Valkey: runs scripts, writes and reads bulk bytes, names what goes wrong.

Scripts go in rounds, many callers' in one round trip; bulk reads, which may be large, go beside them.

It knows nothing of tasks. Every wait has a bound; every failure of the server is an error of `services.common.errors`
that names `host:port` and never the password.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import structlog
from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from services.common.errors import ConfigError, InternalError, OverloadedError, UnavailableError
from services.queue.rounds import Rounds
from services.queue.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from services.queue.rounds import Command

_MAX_CONNECTIONS = 64
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_RETRY_PAUSE_SECONDS = 0.05
_WANTED_POLICY = "noeviction"
# Written before the script that takes it; what no script takes goes away by itself.
_UNTAKEN_SECONDS = 600
_AWAY = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError, OSError)

_log = structlog.get_logger("headrace.queue")

Argument = str | int | float | bytes
"""What a script takes."""


class RedisConnection:
    """One server, through a bounded pool of connections.

    Example:
        connection = RedisConnection("redis://127.0.0.1:6379/0")
        await connection.check()
        answer = await connection.run("heartbeat", run_key("demo"), "replica-a", 3, "{}")
    """

    def __init__(self, url: str) -> None:
        """Name the server; nothing is connected yet.

        Raises:
            ConfigError: the URL cannot be read.
        """
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_MAX_CONNECTIONS,
                timeout=_ANSWER_SECONDS,
                socket_connect_timeout=_CONNECT_SECONDS,
                # The bound of an answer is ours, in `_asking`: with one of its own the library sends through
                # asyncio.wait_for, which in Python 3.11 swallows a cancellation that comes at the wrong moment.
                socket_timeout=None,
                # Heals a pooled connection that a restarted server closed. Every script may be repeated.
                retry=Retry(ConstantBackoff(_RETRY_PAUSE_SECONDS), 1),
            )
        except ValueError as error:
            raise ConfigError(f"queue.redis_url cannot be read: {error}; write redis://host:port/0") from None
        settings = pool.connection_kwargs
        self.where = str(settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}")
        self._redis = Redis(connection_pool=pool)
        self._warned = False
        self._rounds = Rounds(pool, round_seconds=_ANSWER_SECONDS)

    async def check(self) -> None:
        """Make sure that the server answers and will not throw data away; warns of one that keeps nothing on disk.

        Raises:
            UnavailableError: it does not answer.
            ConfigError: it refuses the user or password, or its `maxmemory-policy` may evict keys.
        """
        try:
            async with self._asking():
                memory = await self._redis.info("memory")
                persistence = await self._redis.info("persistence")
        except UnavailableError as error:
            if isinstance(error.__cause__, redis_errors.AuthenticationError):
                # Waiting does not help as it does for a server that is away.
                raise ConfigError(error.message) from error.__cause__
            raise
        policy = memory.get("maxmemory_policy", _WANTED_POLICY)
        if policy != _WANTED_POLICY:
            raise ConfigError(
                f"Redis at {self.where} has maxmemory-policy {policy!r} and may evict tasks and trajectories; "
                f"set it to {_WANTED_POLICY}"
            )
        if persistence.get("aof_enabled") == 0 and not self._warned:
            self._warned = True
            _log.warning(
                f"Redis at {self.where} has appendonly no, so its death loses every run that it holds, and trainers "
                "repeat what they had in flight; set appendonly to yes"
            )

    async def run(self, script: str, key: str, *args: Argument) -> list[Any]:
        """Run a script.

        Args:
            script: its name.
            key: the run's key.
            *args: its arguments.
        """
        return (await self.write_and_run(script, key, *args, values={}))[0]

    async def write_and_run(
        self, script: str, key: str, *args: Argument, values: Mapping[str, bytes]
    ) -> tuple[list[Any], list[str]]:
        """Write bulk values, and run a script that takes or removes them, in one round trip.

        Args:
            script: its name.
            key: the run's key.
            *args: its arguments.
            values: what is written under each key, unless something is there.

        Returns:
            The script's answer, and the keys that nothing was under.
        """
        loaded = load_script(script)
        # Never over what is there: a retried put must not touch a payload that was taken.
        commands: list[Command] = [("SET", name, value, "NX", "EX", _UNTAKEN_SECONDS) for name, value in values.items()]
        commands.append(("EVALSHA", loaded.sha, 1, key, *args))
        async with self._asking():
            answers = await self._rounds.ask(commands, num_bytes=sum(map(len, values.values())))
            if isinstance(answers[-1], redis_errors.NoScriptError):
                answers[-1:] = await self._rounds.ask([("EVAL", loaded.source, 1, key, *args)])
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if failed is not None:
                raise failed
        *writes, answer = answers
        return cast("list[Any]", answer), [name for name, write in zip(values, writes, strict=True) if write]

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read bulk values; None for a key that is not there."""
        if not keys:
            return []
        async with self._asking():
            return cast("list[bytes | None]", await self._redis.mget(keys))

    async def exists(self, key: str) -> bool:
        """Say whether a key is there."""
        async with self._asking():
            return bool(await self._redis.exists(key))

    async def scan(self, pattern: str, cursor: int, *, look_at: int) -> tuple[int, list[bytes]]:
        """Look at about `look_at` keys of the server from a cursor on.

        Returns:
            The next cursor, 0 at the end, and those that fit the pattern. What is there from the first look to the last
            is found.
        """
        async with self._asking():
            return cast("tuple[int, list[bytes]]", await self._redis.scan(cursor, match=pattern, count=look_at))

    async def members(self, key: str) -> list[str]:
        """Read a set of names, in order."""
        async with self._asking():
            members = cast("set[bytes]", await self._redis.smembers(key))
            return sorted(member.decode() for member in members)

    async def count_members(self, key: str) -> int:
        """Count the names in a set."""
        async with self._asking():
            return int(await self._redis.scard(key))

    async def add_member(self, key: str, member: str) -> None:
        """Add a name to a set; a full server would refuse even to add what is there."""
        async with self._asking():
            if not await self._redis.sismember(key, member):
                await self._redis.sadd(key, member)

    async def remove_member(self, key: str, member: str) -> None:
        """Remove a name from a set."""
        async with self._asking():
            await self._redis.srem(key, member)

    async def close(self) -> None:
        """Close every connection."""
        await self._rounds.close()
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Bound the wait for an answer, and turn the client library's errors into ours."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                yield
        except redis_errors.AuthenticationError as error:
            raise UnavailableError(
                f"Redis at {self.where} refused the user or password; check queue.redis_url"
            ) from error
        except TimeoutError as error:
            raise UnavailableError(f"Redis at {self.where} did not answer within {_ANSWER_SECONDS:g} s") from error
        except _AWAY as error:
            raise UnavailableError(f"Redis at {self.where} cannot be reached: {error}; is it running?") from error
        except redis_errors.OutOfMemoryError as error:
            raise OverloadedError(
                f"Redis at {self.where} is out of memory ({error}); raise its maxmemory, or wait for the trainer's "
                "commits to make room"
            ) from error
        except redis_errors.ResponseError as error:
            if str(error).startswith(("MISCONF", "LOADING", "NOREPLICAS", "CLUSTERDOWN", "NOAUTH")):
                raise UnavailableError(f"Redis at {self.where} refuses to work: {error}") from error
            raise InternalError(f"Redis at {self.where} failed: {error}") from error
