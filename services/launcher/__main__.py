"""The command line: `headrace run | verify | join | status | runs | delete`. Parses words, loads the rest on demand."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_TAKE_NO_FLAGS = ("status", "runs", "delete")
_ADDRESS_HELP = "the queue; else that of the newest run in runs/"
_FLAGS_HELP = "--section.key VALUE sets any key of the configuration and wins over the file: --trainer.total_steps 20"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    words, flags = split_flags(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words)
    if flags and arguments.command in _TAKE_NO_FLAGS:
        sys.stderr.write(f"headrace: `{arguments.command}` takes no {flags[0]}\n")
        return EXIT_BAD_INPUT

    # gRPC's own log would break into the report with lines that only its developers can read.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from services.common.errors import HeadraceError, InvalidInputError  # noqa: PLC0415 - --help must be instant

    try:
        return _dispatch(arguments, flags)
    except InvalidInputError as error:
        sys.stderr.write(f"headrace: {error.message}\n")
        return EXIT_BAD_INPUT
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error.message}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Part `--section.key value` flags from the other words; whether a value may be left out is for the loader."""
    rest: list[str] = []
    flags: list[str] = []
    pending = list(words)
    while pending:
        word = pending.pop(0)
        name, equals, _ = word.partition("=")
        if not name.startswith("--") or "." not in name:
            rest.append(word)
        elif equals or not pending or pending[0].startswith("--"):
            flags.append(word)
        else:
            flags.append(f"{word}={pending.pop(0)}")
    return rest, flags


def _parser() -> argparse.ArgumentParser:
    """Describe the commands."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Trains language-model agents by asynchronous reinforcement learning, as four services.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about_run = "start Redis, the services and the rollouters, train, and report"
    run = commands.add_parser("run", help=about_run, epilog=_FLAGS_HELP, allow_abbrev=False)
    run.add_argument("config", type=Path, metavar="CONFIG", help="TOML, YAML or JSON file")
    run.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    run.add_argument("--quiet", action="store_true", help="print only the report and what went wrong")
    verify = commands.add_parser(
        "verify", help="check a configuration and everything it names", epilog=_FLAGS_HELP, allow_abbrev=False
    )
    verify.add_argument("config", type=Path, metavar="CONFIG", help="TOML, YAML or JSON file")
    join = commands.add_parser(
        "join", help="add a rollouter to a run that goes on", epilog=_FLAGS_HELP, allow_abbrev=False
    )
    join.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="the run's folder, such as runs/NAME")
    join.add_argument("--replica-id", default="", metavar="NAME", help="names it; else host and process id")
    status = commands.add_parser("status", help="show where a run stands", allow_abbrev=False)
    status.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="the run's folder, such as runs/NAME")
    status.add_argument("--watch", action="store_true", help="refresh until interrupted or the run ends")
    runs = commands.add_parser("runs", help="list the runs that a queue holds", allow_abbrev=False)
    runs.add_argument("run_directory", type=Path, nargs="?", metavar="RUN_DIR", help="a run whose queue is asked")
    runs.add_argument("--address", default="", metavar="HOST:PORT", help=_ADDRESS_HELP)
    delete = commands.add_parser("delete", help="delete a run from its queue", allow_abbrev=False)
    delete.add_argument("run", metavar="RUN", help="its id as `headrace runs` shows it, or its folder")
    delete.add_argument("--force", action="store_true", help="also when it has not finished; stop its trainer first")
    delete.add_argument("--address", default="", metavar="HOST:PORT", help=_ADDRESS_HELP)
    return parser


def _dispatch(arguments: argparse.Namespace, flags: list[str]) -> int:
    """Load the command's module and run it."""
    match arguments.command:
        case "run":
            from services.launcher.run import run_command  # noqa: PLC0415

            return run_command(arguments.config, flags, dry_run=arguments.dry_run, quiet=arguments.quiet)
        case "verify":
            from services.launcher.verify import verify_command  # noqa: PLC0415

            return verify_command(arguments.config, flags)
        case "join":
            from services.launcher.join import join_command  # noqa: PLC0415

            return join_command(arguments.run_directory, flags, replica_id=arguments.replica_id)
        case "runs":
            from services.launcher.runs import runs_command  # noqa: PLC0415

            return runs_command(arguments.run_directory, address=arguments.address)
        case "delete":
            from services.launcher.runs import delete_command  # noqa: PLC0415

            return delete_command(arguments.run, force=arguments.force, address=arguments.address)
        case _:
            from services.launcher.status import status_command  # noqa: PLC0415

            return status_command(arguments.run_directory, watch=arguments.watch)


if __name__ == "__main__":
    sys.exit(main())
