"""What is checked and built before anything starts: bad input ends in one sentence and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.errors import ConfigError, InternalError, NotFoundError
from services.launcher.log_file import LogFile
from services.launcher.ports import choose_addresses
from services.launcher.process import ChildProcess, Command, describe_exit
from services.launcher.redis_server import find_program, require_reachable
from services.launcher.resolve import redis_url
from services.launcher.summary import read_summary
from services.launcher.supervisor import EXIT_BAD_INPUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.config import RunConfig
    from services.launcher.process import Output
    from services.launcher.run_directory import RunDirectory

ADDRESS_KEYS = ("queue.address", "reward.address", "trainer.address")
"""Keys that hold the address of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything listens."""

    services: dict[str, str]
    """By config key."""
    rollouters: tuple[str, ...]
    """One per replica."""


def chosen_addresses(config: RunConfig) -> Addresses:
    """Free ports for the services that named none, and for the rollouters.

    Raises:
        ConfigError: a given one cannot be used.
    """
    wanted = {key: getattr(config, key.partition(".")[0]).address for key in ADDRESS_KEYS}
    replicas = {f"rollouter-{index}": "127.0.0.1:0" for index in range(config.rollout.replicas)}
    chosen = choose_addresses(wanted | replicas)
    return Addresses(
        services={key: chosen[key] for key in ADDRESS_KEYS}, rollouters=tuple(chosen[key] for key in replicas)
    )


async def check_redis(config: RunConfig) -> None:
    """Make sure that there is a Redis to use.

    Raises:
        ConfigError: the one named cannot be reached, or this machine has none to start.
    """
    url = redis_url(config)
    if url:
        await require_reachable(url)
    else:
        find_program()


def check_can_go_on(config: RunConfig, directory: RunDirectory) -> None:
    """Make sure that a resumed run has not finished with fewer steps than are wanted now.

    Its ledger is closed and its schedule has run out, so nothing would be trained.

    Raises:
        ConfigError: it has finished; says how to train its model further.
    """
    try:
        summary = read_summary(directory.path)
    except NotFoundError:
        # Half a result: the trainer was killed while it wrote it, and writes it again.
        return
    if summary is None:
        return
    total, wanted = summary.figures.get("total_steps", 0), config.trainer.total_steps
    if wanted > total:
        rebuilt = ' --model.build ""' if config.model.build else ""
        raise ConfigError(
            f"run {directory.name} has finished its {total} steps and cannot take up more (trainer.total_steps is "
            f"{wanted}); start a new run from its model with --model.path {directory.path / 'final'}{rebuilt}"
        )


async def prepare_model(
    directory: RunDirectory, *, on_progress: Callable[[str], None], flags: tuple[str, ...] = ()
) -> str:
    """Check model and data and build the model if it is to be built, in a process of its own; returns its folder.

    Args:
        directory: of the run; its configuration is written.
        on_progress: told what is going on, line by line.
        flags: `--section.key=value` words on top of the configuration.

    Raises:
        ConfigError: model or data are wrong.
    """
    argv = (sys.executable, "-m", "services.trainer.prepare", "--config", str(directory.config_file), *flags)
    log = LogFile(directory.logs / "prepare.log")
    errors: list[str] = []
    results: list[str] = []

    def on_output(line: Output) -> None:
        log.write(line.text)
        if not line.text.strip():
            return
        if line.is_error:
            errors[:] = [line.text]
        else:
            results[:] = [line.text]
            if not line.text.startswith("{"):
                on_progress(line.text)

    try:
        code = await (await ChildProcess.start(Command(argv=argv))).follow(on_output)
    finally:
        log.close()
    last_words = errors[0] if errors else f"preparing the model ended with {describe_exit(code)}"
    if code == EXIT_BAD_INPUT:
        raise ConfigError(last_words.removeprefix("headrace: "))
    if code != 0:
        raise InternalError(f"the model cannot be prepared ({describe_exit(code)}): {last_words}")
    return _model_path(results)


def _model_path(results: list[str]) -> str:
    """Read the model folder from the last line that the preparation wrote."""
    try:
        return str(json.loads(results[-1])["model_path"])
    except (IndexError, KeyError, TypeError, json.JSONDecodeError):
        raise InternalError(f"the preparation of the model said {results!r} and not where the model lies") from None
