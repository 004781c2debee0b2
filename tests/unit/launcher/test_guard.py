"""The guard becomes the command, or nothing at all when the parent is gone."""

import os
import subprocess
import sys
from pathlib import Path

import services.launcher.guard as guard

_GUARD = Path(guard.__file__)


def _run(parent: int) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-I", "-S", str(_GUARD), str(parent), "echo", "hello"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)


def test_it_becomes_the_command():
    assert _run(os.getpid()).stdout == "hello\n"


def test_it_does_not_start_without_its_parent():
    done = _run(1 if os.getpid() != 1 else 2)
    assert (done.returncode, done.stdout) == (1, "")
