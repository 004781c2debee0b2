"""Scorers that a user might write, good and bad; `builders.named` gives their names."""

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path


def length(completion, answer, metadata, messages):
    """Counts characters."""
    return {"reward": len(completion), "parts": {"messages": len(messages), "weight": metadata.get("weight", 0)}}


def plain(completion, answer, **_):
    return 0.25 if completion == answer else -1


def not_finite(**_):
    return math.nan


def words(**_):
    return "good"


def raises(**_):
    raise KeyError("no such thing")


def leaves(**_):
    sys.exit(3)


def dies(**_):
    os._exit(7)


def prints(**_):
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"raw bytes on standard output")
    assert sys.stdin.read() == ""
    return 1.0


def hangs(metadata, **_):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(metadata["pid_file"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def holds_the_interpreter(**_):
    re.fullmatch(r"(a+)+b", "a" * 40)


def slow(metadata, **_):
    time.sleep(metadata["seconds"])
    with Path(metadata["log"]).open("a") as log:
        log.write("scored\n")
    return 0.5


def meets(metadata, **_):
    """Returns 1 when the other one runs at the same time."""
    folder = Path(metadata["folder"])
    (folder / metadata["me"]).touch()
    deadline = time.monotonic() + 8
    while not (folder / metadata["other"]).exists():
        if time.monotonic() > deadline:
            return 0.0
        time.sleep(0.01)
    return 1.0
