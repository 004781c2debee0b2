"""`make chaos`: the whole system under random kills, until there were enough of them.

    python -m tests.chaos --seed 1 --kills 200

Prints a line about each event, and one JSON object as its last line. Exit status 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.chaos.campaign import run_campaign

_SECONDS_PER_RUN = 600.0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; the next ones count on from it")
    parser.add_argument("--kills", type=int, default=200, help="blows wanted over all runs")
    parser.add_argument("--runs", type=int, default=0, help="most runs; 0 runs until there were enough kills")
    parser.add_argument("--seconds", type=float, default=_SECONDS_PER_RUN, help="bound of each run")
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"), help="where runs and events are written")
    parser.add_argument("--keep", action="store_true", help="keep the run directories of clean runs too")
    arguments = parser.parse_args()
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    summary = run_campaign(
        seed=arguments.seed,
        kills=arguments.kills,
        runs=arguments.runs,
        folder=arguments.folder.absolute(),
        seconds=arguments.seconds,
        keep=arguments.keep,
        say=lambda line: print(f"[chaos] {line}", flush=True),
    )
    print(json.dumps(summary))
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
