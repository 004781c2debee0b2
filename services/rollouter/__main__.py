"""Starts a rollouter: `python -m services.rollouter --config FILE [--section.key value ...]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from services.common.config import load_config
from services.common.errors import HeadraceError
from services.common.telemetry.logging import setup_logging
from services.common.telemetry.setup import setup_telemetry
from services.rollouter.config import service_config
from services.rollouter.server import serve


def main() -> int:
    """Read the configuration and work until told to stop; 2 says that the configuration is wrong."""
    parser = argparse.ArgumentParser(prog="python -m services.rollouter", description="Generates trajectories.")
    parser.add_argument("--config", type=Path, required=True, help="the run's configuration file")
    parser.add_argument("--address", default="127.0.0.1:0", help="where to listen, port 0 takes a free one")
    parser.add_argument("--replica-id", default="", help="name of this replica; also HEADRACE_REPLICA_ID")
    arguments, flags = parser.parse_known_args()
    try:
        run = load_config(arguments.config, flags)
        config = service_config(run, replica_id=arguments.replica_id, address=arguments.address)
        setup_logging("rollouter", run_id=config.run_id, level=run.telemetry.log_level)
        telemetry = setup_telemetry("rollouter", instance=config.replica_id, traces_path=config.traces_path)
        asyncio.run(serve(config, telemetry=telemetry))
    except HeadraceError as error:
        sys.stderr.write(f"headrace rollouter: {error.message}\n")
        return 2 if error.code == "INVALID_ARGUMENT" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
