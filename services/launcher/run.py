"""`headrace run`: check, prepare, start, train, report."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from services.common.config import dump_config, load_config
from services.common.errors import HeadraceError
from services.common.scoring import check_scorer
from services.common.types import RunId
from services.launcher.bottleneck import cores_of
from services.launcher.fleet import Fleet, FleetPlan, failed
from services.launcher.interrupts import InterruptedByUserError, Interrupts
from services.launcher.monitor import Monitor
from services.launcher.news import News
from services.launcher.preflight import check_can_go_on, check_redis, chosen_addresses, prepare_model
from services.launcher.redis_server import embedded_redis
from services.launcher.resolve import place_run, redis_url, resolve_paths, with_addresses, with_model, write_config
from services.launcher.run_directory import open_run_directory, planned_path
from services.launcher.screen import make_screen
from services.launcher.summary import read_summary
from services.launcher.supervisor import EXIT_BAD_INPUT, EndKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from services.common.config import RunConfig
    from services.launcher.run_directory import RunDirectory
    from services.launcher.screen import Screen

_FAILED_DRAIN_SECONDS = 30.0


class ExitCode(IntEnum):
    """Exit statuses of `headrace run`."""

    SUCCESS = 0
    """Trained, and every task is accounted for."""
    FAILED = 1
    """A service could not be kept running, the trainer could not go on, or the ledger does not balance."""
    BAD_INPUT = 2
    """A service refused its configuration before training began; nothing was left behind."""
    INTERRUPTED = 130
    """The user ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    code: ExitCode
    """Exit status."""
    problem: str = ""
    """What went wrong, for people."""
    rollouter_wait_share: float | None = None
    """Share of its time that the average rollouter waited; None when unknown."""


def run_command(config_path: Path, flags: Sequence[str], *, dry_run: bool, quiet: bool) -> int:
    """Run the command and return its exit status.

    Args:
        config_path: the configuration.
        flags: `--section.key=value` words.
        dry_run: only print the resolved configuration.
        quiet: print only the report and what went wrong.

    Raises:
        ConfigError: the configuration, or something that it names, is wrong; nothing was left behind.
    """
    config = resolve_paths(load_config(config_path, flags), config_path)
    check_scorer(config.reward)
    if dry_run:
        run = config.run.model_copy(update={"name": planned_path(config, config_path).name})
        sys.stdout.write(dump_config(config.model_copy(update={"run": run})))
        return ExitCode.SUCCESS
    return asyncio.run(_run(config, config_path, quiet=quiet))


async def _run(config: RunConfig, config_path: Path, *, quiet: bool) -> int:
    """Prepare and train, listening to the user."""
    interrupts = Interrupts()
    with interrupts.installed():
        screen = make_screen(quiet=quiet)
        try:
            with screen:
                plan = await _prepare(config, config_path, interrupts=interrupts, screen=screen)
                try:
                    outcome = await _train(plan, interrupts=interrupts, screen=screen)
                finally:
                    plan.directory.close()
        except InterruptedByUserError:
            return ExitCode.INTERRUPTED
    return _report(plan, outcome, config_path=config_path)


async def _prepare(config: RunConfig, config_path: Path, *, interrupts: Interrupts, screen: Screen) -> FleetPlan:
    """Check everything, make the run directory and build the model; a failure leaves no directory behind."""
    await interrupts.unless_asked(check_redis(config))
    addresses = chosen_addresses(config)
    directory = open_run_directory(config, config_path)
    try:
        check_can_go_on(config, directory)
        config = with_addresses(place_run(config, directory), addresses.services)
        write_config(config, directory)
        screen.say(f"run {directory.run_id} in {directory.path}; checking data and model ...")
        model = await interrupts.unless_asked(prepare_model(directory, on_progress=screen.say))
        config = with_model(config, model)
        write_config(config, directory)
        url = redis_url(config)
        embedded = None if url else embedded_redis(directory.redis, append_fsync=config.queue.append_fsync)
    except BaseException:
        directory.discard()
        raise
    return FleetPlan(
        config=config,
        directory=directory,
        redis_url=embedded.url if embedded else url,
        embedded=embedded,
        rollouter_addresses=addresses.rollouters,
    )


async def _train(plan: FleetPlan, *, interrupts: Interrupts, screen: Screen) -> Outcome:
    """Start everything, keep it running until the trainer is done or the user asks, and drain."""
    rollouters = plan.config.rollout.replicas
    screen.say(f"starting queue, reward, trainer and {rollouters} rollouter{'s' if rollouters > 1 else ''} ...")
    async with asyncio.TaskGroup() as group:
        fleet = Fleet(plan, report=screen.say, on_trainer_line=screen.step)
        run_id = RunId(plan.directory.run_id)
        news = News(own_rollouters=tuple(rollouter.name for rollouter in fleet.rollouters))
        monitor = Monitor(plan.config.queue.address, run_id, screen=screen, cores=cores_of(plan.config), news=news)
        forcing = group.create_task(_kill_when_forced(fleet, interrupts))
        watching = group.create_task(monitor.run())
        outcome = await _conduct(fleet, group, interrupts=interrupts, screen=screen)
        watching.cancel()
        await fleet.drain()
        forcing.cancel()
    if interrupts.force.is_set():
        return Outcome(code=ExitCode.INTERRUPTED, problem="ended at once")
    return replace(outcome, rollouter_wait_share=monitor.rollouter_wait_share)


async def _conduct(fleet: Fleet, group: asyncio.TaskGroup, *, interrupts: Interrupts, screen: Screen) -> Outcome:
    """Start the fleet and wait for its end or the user's wish."""
    starting = group.create_task(fleet.start(group))
    asked = group.create_task(interrupts.drain.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        starting.cancel()
        return Outcome(code=ExitCode.INTERRUPTED)
    early = starting.result()
    if early is not None:
        asked.cancel()
        return Outcome(code=ExitCode.FAILED, problem=early.message)
    waiting = group.create_task(fleet.wait_end())
    await asyncio.wait((waiting, asked), return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        screen.say(
            "stopping: the trainer finishes its step, writes a checkpoint and commits (Ctrl-C again ends at once)"
        )
        await fleet.stop_trainer()
        return Outcome(code=ExitCode.INTERRUPTED)
    asked.cancel()
    name, end = waiting.result()
    if not failed(end) and name == fleet.trainer.name:
        return Outcome(code=ExitCode.SUCCESS)
    if name != fleet.trainer.name:
        await fleet.stop_trainer(grace_seconds=_FAILED_DRAIN_SECONDS)
    if end.code == EXIT_BAD_INPUT and end.kind is EndKind.GAVE_UP and not fleet.has_trained:
        return Outcome(code=ExitCode.BAD_INPUT, problem=fleet.last_words(name))
    if end.kind is EndKind.DONE:
        log = fleet.trainer.service.log.path
        return Outcome(code=ExitCode.FAILED, problem=f"the trainer cannot go on: {fleet.last_words(name)} (log: {log})")
    return Outcome(code=ExitCode.FAILED, problem=end.message)


async def _kill_when_forced(fleet: Fleet, interrupts: Interrupts) -> None:
    """End everything when the user asks twice."""
    await interrupts.force.wait()
    fleet.kill()


def _report(plan: FleetPlan, outcome: Outcome, *, config_path: Path) -> int:
    """Print the final report, and return the exit status."""
    directory = plan.directory
    code = outcome.code
    if outcome.problem:
        sys.stderr.write(f"headrace: {outcome.problem}\n")
    if code is ExitCode.BAD_INPUT:
        directory.discard()
        return code
    try:
        summary = read_summary(directory.path)
    except HeadraceError as error:
        summary = None
        if code is ExitCode.SUCCESS:
            sys.stderr.write(f"headrace: {error.message}\n")
            code = ExitCode.FAILED
    if summary is not None:
        share = outcome.rollouter_wait_share
        sys.stdout.write(summary.text(rollouter_wait_share=share, cores=cores_of(plan.config)))
        if code is ExitCode.SUCCESS and not summary.balanced:
            sys.stderr.write(f"headrace: {summary.imbalance}\n")
            code = ExitCode.FAILED
    elif code is ExitCode.SUCCESS:
        sys.stdout.write("the trainer was told to stop before the run was done\n")
        code = ExitCode.INTERRUPTED
    if code is not ExitCode.SUCCESS:
        sys.stdout.write(_how_to_go_on(directory, config_path))
    return code


def _how_to_go_on(directory: RunDirectory, config_path: Path) -> str:
    """Say how an ended run can be continued."""
    return (
        f"run directory: {directory.path}\nlogs: {directory.logs}\n"
        f"go on with: headrace run {config_path} --run.name {directory.name} --run.resume true\n"
    )
