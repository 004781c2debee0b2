"""The end of runs: which runs there are, and how one is deleted with every key that it has.

    (none) -> live -> finished -> deleting -> (none); by force live -> deleting

A deletion has a name, kept under the run's `deleted` key. From its first script on the run's hash is gone, so that
every call answers NOT_FOUND, and no run of that id can be created. Then all keys of the run are looked for by SCAN and
unlinked in slices; each slice goes through a script that asks whether this deletion still goes on, since afterwards a
new run may own the same keys. The `deleted` key is the last one to go. Whoever repeats the deletion joins it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import structlog

from services.common.errors import RunNotFinishedError
from services.common.types import Deletion, RunId, RunSummary
from services.queue.answers import status_of, text
from services.queue.keys import LIVE_KEY, RUNS_KEY, deleted_key, run_key, run_pattern

if TYPE_CHECKING:
    from services.queue.connection import RedisConnection
    from services.queue.quotas import Quotas
    from services.queue.waiting import Waiting

_MS = 1000
_LOOK_AT = 1000
_SLICE_KEYS = 500
_NAME_BYTES = 8
_DELETE_SECONDS = 10.0

_log = structlog.get_logger("headrace.queue")


class Retirement:
    """Lists and deletes the runs of one server."""

    def __init__(self, redis: RedisConnection, waiting: Waiting, quotas: Quotas) -> None:
        """Use the connection; end the waits for a deleted run; keep finished runs as long as the quotas say."""
        self._redis = redis
        self._waiting = waiting
        self._quotas = quotas

    async def list_runs(self) -> list[RunSummary]:
        """Describe every run, in order of name; one that is being deleted is none."""
        found = [await self._describe(run_id) for run_id in await self._known()]
        return [summary for summary in found if summary is not None]

    async def delete(self, run_id: RunId, *, force: bool = False, seconds: float = _DELETE_SECONDS) -> Deletion:
        """Delete a run and every key of it. A run that is not there is deleted already.

        Args:
            run_id: the run.
            force: also one that has not finished, or of another state format.
            seconds: time after which the rest is left to a later call or to `retire`.

        Raises:
            RunNotFinishedError: it has not finished.
            StateFormatError: another version of Headrace wrote it.
        """
        name = secrets.token_hex(_NAME_BYTES)
        answer = await self._redis.run("delete_run", run_key(run_id), name, int(force))
        status = text(answer[0])
        if status == "not_found":
            await self._drop_names(run_id)
            return Deletion(num_keys=0, complete=True)
        if status_of(answer, run_id) == "not_finished":
            raise RunNotFinishedError(
                f"run {run_id!r} has not finished; let it finish, or stop it (Ctrl-C of its `headrace run`) and delete "
                "it with force"
            )
        # Known as a run, so that a deletion that is cut short is gone on with.
        await self._redis.add_member(RUNS_KEY, run_id)
        self._waiting.notify(run_id)
        return await self._delete_keys(run_id, text(answer[1]), seconds=seconds)

    async def retire(self) -> list[RunId]:
        """Delete what has finished long ago, and go on with deletions that were cut short; returns which are gone."""
        retired = []
        for run_id in await self._known():
            if await self._is_over(run_id) and (await self.delete(run_id)).complete:
                _log.info("run deleted", run=run_id)
                retired.append(run_id)
        return retired

    async def _is_over(self, run_id: RunId) -> bool:
        """Whether nothing should be left of the run."""
        if await self._redis.exists(deleted_key(run_id)):
            return True
        summary = await self._describe(run_id)
        if summary is None:
            await self._drop_names(run_id)
            return False
        keep_seconds = self._quotas.keep_finished_seconds
        return bool(keep_seconds) and summary.finished and summary.idle_seconds > keep_seconds

    async def _delete_keys(self, run_id: RunId, name: str, *, seconds: float) -> Deletion:
        """Delete what can be found, in slices, until the time is over."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        last = deleted_key(run_id).encode()
        num_keys = cursor = 0
        while True:
            cursor, keys = await self._redis.scan(run_pattern(run_id), cursor, look_at=_LOOK_AT)
            found = [key for key in keys if key != last]
            for start in range(0, len(found), _SLICE_KEYS):
                some = found[start : start + _SLICE_KEYS]
                answer = await self._redis.run("delete_keys", run_key(run_id), name, *some)
                if text(answer[0]) == "ended":
                    # Another call came to the end first.
                    return Deletion(num_keys=num_keys, complete=True)
                num_keys += int(answer[1])
            if cursor == 0:
                break
            if clock() > deadline:
                return Deletion(num_keys=num_keys, complete=False)
        # While the run cannot be created again its names can be dropped for good.
        await self._redis.remove_member(RUNS_KEY, run_id)
        await self._redis.remove_member(LIVE_KEY, run_id)
        await self._redis.run("delete_keys", run_key(run_id), name)
        return Deletion(num_keys=num_keys + 1, complete=True)

    async def _describe(self, run_id: RunId) -> RunSummary | None:
        """Describe a run; None when there is none."""
        answer = await self._redis.run("describe_run", run_key(run_id))
        status = text(answer[0])
        if status in {"not_found", "deleting"}:
            return None
        if status == "format":
            return RunSummary(run_id=run_id, format=text(answer[1]) or "none", readable=False)
        finished, epoch, commit_number, policy_version, num_bytes, num_open, created, trainer, active = (
            int(value) for value in answer[2:11]
        )
        return RunSummary(
            run_id=run_id,
            format=text(answer[1]),
            readable=True,
            finished=bool(finished),
            epoch=epoch,
            commit_number=commit_number,
            policy_version=policy_version,
            payload_bytes=num_bytes,
            open_tasks=num_open,
            create_time=created / _MS,
            trainer_idle_seconds=trainer / _MS,
            idle_seconds=active / _MS,
        )

    async def _known(self) -> list[RunId]:
        return [RunId(member) for member in await self._redis.members(RUNS_KEY)]

    async def _drop_names(self, run_id: RunId) -> None:
        """Forget a run that is not there, unless it was created meanwhile."""
        for key in (RUNS_KEY, LIVE_KEY):
            await self._redis.remove_member(key, run_id)
        if await self._redis.exists(run_key(run_id)):
            for key in (RUNS_KEY, LIVE_KEY):
                await self._redis.add_member(key, run_id)
