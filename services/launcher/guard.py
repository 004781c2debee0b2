"""Runs a command that dies with the process that started it: `python -I -S guard.py PARENT_PID COMMAND...`.

The launcher starts every process through this file. Where the kernel has it (Linux), the process is told to be killed
when its parent ends, so that nothing stays behind even when the launcher itself is killed. The file knows only the
standard library, because it runs without site-packages to start in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Bind this process's life to its parent's and become the command.

    Args:
        argv: process id of the parent, then the command and its arguments.
    """
    parent_pid, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the binding was in place.
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - becoming the command is the point


if __name__ == "__main__":
    main(sys.argv[1:])
