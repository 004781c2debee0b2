"""Starts the reward service: `python -m services.reward --config FILE [--section.key value ...]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from services.common.config import load_config
from services.common.errors import HeadraceError
from services.common.telemetry.logging import setup_logging
from services.reward.config import service_config
from services.reward.server import serve


def main() -> int:
    """Read the configuration and serve until told to stop; 2 says that the configuration is wrong."""
    parser = argparse.ArgumentParser(prog="python -m services.reward", description="Scores completions.")
    parser.add_argument("--config", type=Path, required=True, help="the run's configuration file")
    arguments, flags = parser.parse_known_args()
    try:
        config = load_config(arguments.config, flags)
        setup_logging("reward", run_id=config.run.name, level=config.telemetry.log_level.upper())
        asyncio.run(serve(service_config(config.reward)))
    except HeadraceError as error:
        sys.stderr.write(f"headrace reward: {error.message}\n")
        return 2 if error.code == "INVALID_ARGUMENT" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
