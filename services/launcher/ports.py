"""Addresses that services listen on: free ports are chosen here, given ones are checked before anything starts.

Chosen ports lie below the range that the system gives to clients: otherwise a client on this machine could get the port
of a service in the moment between its death and its restart.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from services.common.errors import ConfigError

_CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_FEWEST_PORTS = 1_000
_MAX_TRIES = 100


def split_address(address: str, *, key: str) -> tuple[str, int]:
    """Split `host:port`.

    Args:
        address: the text.
        key: the config key it came from, for the message.

    Raises:
        ConfigError: it has another form.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{key} is {address!r}; write it as host:port, e.g. 127.0.0.1:50051; port 0 takes a free one")
    return host.strip("[]"), int(port)


def choose_addresses(wanted: dict[str, str]) -> dict[str, str]:
    """Turn every port 0 into a free port, and make sure that the given ones are free.

    The chosen ports are free when this returns; the services bind them soon after.

    Args:
        wanted: config key to `host:port`.

    Returns:
        The same keys with ports that can be bound.

    Raises:
        ConfigError: an address is malformed, in use, or not this machine's.
    """
    chosen: dict[str, str] = {}
    with ExitStack() as held:
        # All sockets stay open until the last port is chosen, so that no port is chosen twice.
        for key, address in wanted.items():
            host, port = split_address(address, key=key)
            twin = next((other for other, text in wanted.items() if other < key and text == address and port), None)
            if twin:
                raise ConfigError(f"{twin} and {key} are both {address}; give each service a port of its own")
            probe = held.enter_context(_bound(host, port, key=key) if port else _chosen(host, key=key))
            bound_port = probe.getsockname()[1]
            shown_host = f"[{host}]" if ":" in host else host
            chosen[key] = f"{shown_host}:{bound_port}"
    return chosen


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with _chosen(host, key="port") as probe:
        port: int = probe.getsockname()[1]
        return port


def _chosen(host: str, *, key: str) -> socket.socket:
    """Bind a socket to a free port that no client gets; to any free one where there is no such range."""
    ports = service_ports()
    for _ in range(_MAX_TRIES if ports else 0):
        with suppress(OSError):
            return _bind(host, ports[secrets.randbelow(len(ports))], key=key)
    return _bound(host, 0, key=key)


def service_ports(client_ports: Path = _CLIENT_PORTS) -> range:
    """Ports below the range that the system gives to clients; empty when it is unknown or leaves too few.

    Args:
        client_ports: file with the range's first and last port.
    """
    try:
        first = int(client_ports.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return range(0)
    ports = range(_LOWEST_PORT, first)
    return ports if len(ports) >= _FEWEST_PORTS else range(0)


def _bound(host: str, port: int, *, key: str) -> socket.socket:
    """Bind a socket, or say why not."""
    try:
        # Connections of an earlier run that only time out do not make a given port unusable for a listener; for a
        # chosen one the option would allow the same choice twice.
        return _bind(host, port, key=key, reuse=port != 0)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{key} is {host}:{port}, which cannot be listened on: {reason}; stop the process that uses it, "
            "or choose another port, or port 0 for a free one"
        ) from None


def _bind(host: str, port: int, *, key: str, reuse: bool = False) -> socket.socket:
    """Bind a socket; an address that cannot be listened on is an `OSError`."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"{key} is {host}:{port}; the host cannot be resolved ({error.strerror})") from None
    probe = socket.socket(family, kind)
    try:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(target)
    except OSError:
        probe.close()
        raise
    return probe
