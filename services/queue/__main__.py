"""Starts the queue service: `python -m services.queue --config FILE [--section.key value ...]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from services.common.config import load_config
from services.common.errors import HeadraceError
from services.common.telemetry.logging import setup_logging
from services.common.telemetry.trace import bind_tracer
from services.queue.config import service_config
from services.queue.memory import keep_freed_memory
from services.queue.server import serve


def main() -> int:
    """Read the configuration and serve until told to stop; 2 says that the configuration is wrong."""
    parser = argparse.ArgumentParser(prog="python -m services.queue", description="Carries tasks and trajectories.")
    parser.add_argument("--config", type=Path, required=True, help="the run's configuration file")
    arguments, flags = parser.parse_known_args()
    try:
        config = load_config(arguments.config, flags)
        setup_logging("queue", run_id=config.run.name, level=config.telemetry.log_level.upper())
        settings = service_config(config)
        # The queue names the traces of trajectories; it has no spans of its own to write.
        bind_tracer(None, sample_ratio=settings.sample_ratio)
        keep_freed_memory()
        asyncio.run(serve(settings))
    except HeadraceError as error:
        sys.stderr.write(f"headrace queue: {error.message}\n")
        return 2 if error.code == "INVALID_ARGUMENT" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
