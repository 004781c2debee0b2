"""`headrace verify`: is everything there that a run needs? One line per check, and what to change where one fails."""

from __future__ import annotations

import asyncio
import functools
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.config import load_config
from services.common.errors import ConfigError, HeadraceError
from services.common.scoring import check_scorer, probe_scorer
from services.common.types import RunId, SamplingParams, ScoreRequest, ScoringSpec
from services.launcher.fleet import service_environment
from services.launcher.log_file import LogFile
from services.launcher.preflight import check_redis, chosen_addresses, prepare_model
from services.launcher.process import ChildProcess, Command, describe_exit
from services.launcher.redis_server import find_program, without_secret
from services.launcher.resolve import place_run, redis_url, resolve_paths, with_addresses, with_model, write_config
from services.launcher.run_directory import open_run_directory
from services.trainer.dataset import load_data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from services.common.config import RunConfig
    from services.common.types import Score
    from services.launcher.preflight import Addresses
    from services.launcher.run_directory import RunDirectory
    from services.trainer.dataset import DataRow

_EXIT_FAILED = 1
_START_SECONDS = 120.0
_SCORE_SECONDS = 60.0
_GENERATE_SECONDS = 120.0
_MAX_PROBE_TOKENS = 32
_SHOWN_CHARACTERS = 60


def verify_command(config_path: Path, flags: Sequence[str]) -> int:
    """Run the command and return its exit status: 0 when every check passed, 1 otherwise.

    Args:
        config_path: the configuration.
        flags: `--section.key=value` words.

    Raises:
        ConfigError: the configuration itself is wrong.
    """
    config = resolve_paths(load_config(config_path, flags), config_path)
    _say("ok", "configuration", f"{config_path} is valid")
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as folder:
        return asyncio.run(_Verification(config, config_path, folder=Path(folder)).run())


@dataclass(slots=True)
class _Progress:
    """What earlier checks found and later ones need."""

    row: DataRow | None = None
    """First row of the data."""
    model_path: str = ""
    """The model folder."""


class _Verification:
    """The checks, in order; a check that needs what an earlier one did not find is left out."""

    def __init__(self, config: RunConfig, config_path: Path, *, folder: Path) -> None:
        """Prepare.

        Args:
            config: with absolute paths.
            config_path: where it came from.
            folder: for files of the checks; removed afterwards.
        """
        self._config = config
        self._config_path = config_path
        self._keep = Path(config.run.directory).absolute()
        self._folder = folder
        self._found = _Progress()
        self._num_failed = 0

    async def run(self) -> int:
        """Do every check, and return the exit status."""
        await self._check("redis", self._redis)
        await self._check("data", self._data)
        await self._check("scorer settings", self._scorer_settings)
        addresses = chosen_addresses(self._config)
        directory = self._temporary_run(addresses)
        try:
            await self._check("model", lambda: self._model(directory))
            await self._check("scorer", lambda: self._scorer(directory, addresses))
            await self._check("generation", lambda: self._generation(directory, addresses))
        finally:
            directory.close()
        checks = "check" if self._num_failed == 1 else "checks"
        sys.stdout.write(f"{self._num_failed} {checks} failed\n" if self._num_failed else "everything is there\n")
        return _EXIT_FAILED if self._num_failed else 0

    async def _check(self, name: str, check: Callable[[], Awaitable[str]]) -> None:
        """Do one check and print its line."""
        try:
            _say("ok", name, await check())
        except _LeftOutError as error:
            _say("--", name, f"left out: {error}")
        except Exception as error:
            # Whatever a check runs into is its verdict, and the others still come.
            self._num_failed += 1
            _say("FAILED", name, _sentence(error))

    def _temporary_run(self, addresses: Addresses) -> RunDirectory:
        """Make a run directory that nobody sees."""
        run = self._config.run.model_copy(update={"directory": str(self._folder), "name": "verify", "resume": False})
        config = self._config.model_copy(update={"run": run})
        directory = open_run_directory(config, self._config_path)
        self._config = with_addresses(place_run(config, directory), addresses.services)
        write_config(self._config, directory)
        return directory

    async def _redis(self) -> str:
        """Is there a Redis?"""
        await check_redis(self._config)
        url = redis_url(self._config)
        return f"{without_secret(url)} answers" if url else f"{find_program()} will be started"

    async def _data(self) -> str:
        """Can the rows be read?"""
        data = await asyncio.to_thread(load_data, self._config, folder=self._config_path.resolve().parent)
        self._found.row = data.train[0]
        return f"{len(data.train)} rows to train on, {len(data.validation)} held out"

    async def _scorer_settings(self) -> str:
        """Does `[reward]` make sense?"""
        return f"{check_scorer(self._config.reward).scorer} is known"

    async def _model(self, directory: RunDirectory) -> str:
        """Is the model folder whole, and do the prompts fit?"""
        # What is built is kept where `headrace run` finds it; only the run directory is a temporary one.
        flags = (f"--run.directory={self._keep}",)
        on_progress = functools.partial(_say, "..", "model")
        self._found.model_path = await prepare_model(directory, on_progress=on_progress, flags=flags)
        self._config = with_model(self._config, self._found.model_path)
        write_config(self._config, directory)
        return f"{self._found.model_path} is usable and every prompt fits"

    async def _scorer(self, directory: RunDirectory, addresses: Addresses) -> str:
        """Does the scorer tell a right answer from a wrong one?"""
        from services.common.clients.reward import RewardClient  # noqa: PLC0415 - grpc is loaded only when it is needed
        from services.common.rpc.channel import open_channel  # noqa: PLC0415

        row = self._found.row
        if row is None:
            raise _LeftOutError("there is no data")
        scoring = ScoringSpec(answer=row.answer, metadata_json=row.metadata_json)
        async with _service("reward", directory, address=addresses.services["reward.address"]) as address:
            channel = open_channel(address)

            async def score(completion: str) -> Score:
                request = ScoreRequest(
                    run_id=RunId(directory.run_id),
                    trajectory_id=f"verify/{completion}",
                    messages=row.messages,
                    completion=completion,
                    scoring=scoring,
                )
                return await RewardClient(channel).score(request, timeout_seconds=_SCORE_SECONDS)

            try:
                options = check_scorer(self._config.reward)
                probe = await probe_scorer(score, answer=row.answer, options=options)
            finally:
                await channel.close(None)
        said = f"{probe.right_text!r} scores {probe.right.reward:g}, {probe.wrong_text!r} scores {probe.wrong.reward:g}"
        if not probe.tells_apart:
            raise ConfigError(f"{said}; a scorer that does not tell them apart teaches nothing: check [reward]")
        return said

    async def _generation(self, directory: RunDirectory, addresses: Addresses) -> str:
        """Does a rollouter generate?"""
        from services.common.clients.rollouter import RollouterClient  # noqa: PLC0415
        from services.common.rpc.channel import open_channel  # noqa: PLC0415

        row = self._found.row
        if row is None or not self._found.model_path:
            raise _LeftOutError("there is no data or no model")
        rollout = self._config.rollout
        sampling = SamplingParams(
            max_new_tokens=min(_MAX_PROBE_TOKENS, rollout.max_new_tokens), temperature=rollout.temperature
        )
        arguments = ("--address", addresses.rollouters[0])
        async with _service("rollouter", directory, address=addresses.rollouters[0], arguments=arguments) as address:
            channel = open_channel(address)
            try:
                pieces = RollouterClient(channel).generate(row.messages, sampling, timeout_seconds=_GENERATE_SECONDS)
                received = [piece async for piece in pieces]
            finally:
                await channel.close(None)
        num_tokens = sum(len(piece.token_ids) for piece in received)
        return f"{num_tokens} tokens for {_short(row.question)}: {_short(received[-1].text)}"


class _LeftOutError(Exception):
    """A check cannot be done because an earlier one failed."""


@asynccontextmanager
async def _service(
    module: str, directory: RunDirectory, *, address: str, arguments: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """Run one service alone for the length of the block; yields where it listens."""
    from services.common.rpc.health import wait_healthy  # noqa: PLC0415 - grpc is loaded only when it is needed

    argv = (sys.executable, "-m", f"services.{module}", "--config", str(directory.config_file), *arguments)
    log = LogFile(directory.logs / f"{module}.log")
    async with asyncio.TaskGroup() as group:
        child = await ChildProcess.start(Command(argv=argv, environment=service_environment(directory, threads=1)))
        ended = group.create_task(child.follow(lambda line: log.write(line.text)))
        ready = group.create_task(_outcome(wait_healthy(address, _START_SECONDS)))
        try:
            await asyncio.wait((ended, ready), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ready.cancel()
                words = next((line for line in reversed(log.tail) if line.strip()), "it wrote nothing")
                raise ConfigError(f"the {module} service ended with {describe_exit(ended.result())}: {words}")
            if problem := ready.result():
                raise ConfigError(f"the {module} service did not start: {problem}")
            yield address
        finally:
            child.kill()
            await asyncio.wait((ended,))
            log.close()


async def _outcome(work: Awaitable[None]) -> str:
    """Wait, and return the failure as a sentence; empty when there is none."""
    try:
        await work
    except HeadraceError as error:
        return error.message
    return ""


def _sentence(error: Exception) -> str:
    """Word what ended a check in one line; a task group hands out its body's error wrapped in a group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, HeadraceError):
        return " ".join(error.message.split())
    return " ".join(f"{type(error).__name__}: {error}".split())


def _say(verdict: str, name: str, text: str) -> None:
    """Print the line of one check."""
    sys.stdout.write(f"{verdict:>6}  {name}: {text}\n")
    sys.stdout.flush()


def _short(text: str) -> str:
    """A text in one short line."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= _SHOWN_CHARACTERS else f"{flat[:_SHOWN_CHARACTERS]}...")
