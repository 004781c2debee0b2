"""Starts the trainer: `python -m services.trainer --config FILE [--section.key value ...]`.

Exit status: 0 the run is done or was asked to stop; 1 it failed and may go on when it is started again; 2 the
configuration, data or model are wrong; 3 it cannot go on, whatever is started again (nothing came for
too long, the queue or the run directory belongs to another run); 4 a newer trainer has taken the run over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from services.common.config import load_config
from services.common.errors import (
    ConfigError,
    ConflictError,
    FencedError,
    HeadraceError,
    QuotaError,
    ReconcileRequiredError,
    RunFinishedError,
    StalledError,
    StateFormatError,
)
from services.common.telemetry.logging import setup_logging
from services.common.telemetry.setup import setup_telemetry
from services.trainer.config import service_config

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_CANNOT_GO_ON = 3
EXIT_REPLACED = 4

_FINAL = (ConflictError, QuotaError, ReconcileRequiredError, RunFinishedError, StalledError, StateFormatError)


def main() -> int:
    """Read the configuration and train until done or told to stop."""
    parser = argparse.ArgumentParser(prog="python -m services.trainer", description="Learns and publishes weights.")
    parser.add_argument("--config", type=Path, required=True, help="the run's configuration file")
    arguments, flags = parser.parse_known_args()
    try:
        run = load_config(arguments.config, flags)
        config = service_config(run, folder=arguments.config.resolve().parent)
        setup_logging("trainer", run_id=config.run_id, level=run.telemetry.log_level)
        telemetry = setup_telemetry(
            "trainer",
            instance=config.replica_id,
            traces_path=config.traces_path,
            sample_ratio=run.telemetry.sample_ratio,
        )
        from services.trainer.server import serve  # noqa: PLC0415 - loads torch, which a wrong configuration need not

        asyncio.run(serve(config, telemetry=telemetry))
    except HeadraceError as error:
        sys.stderr.write(f"headrace trainer: {sentence(error)}\n")
        return exit_status(error)
    return 0


def sentence(error: HeadraceError) -> str:
    """Word an error for people."""
    if isinstance(error, FencedError):
        return f"a newer trainer has taken the run over, so this one ends ({error.message})"
    return error.message


def exit_status(error: HeadraceError) -> int:
    """Say whether starting again can help."""
    if isinstance(error, ConfigError):
        return EXIT_BAD_INPUT
    if isinstance(error, FencedError):
        return EXIT_REPLACED
    return EXIT_CANNOT_GO_ON if isinstance(error, _FINAL) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
