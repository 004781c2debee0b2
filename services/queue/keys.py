"""Names of Redis keys. All keys of a run share the hash tag `{run_id}`, so they live in one slot of a cluster.

Lua names the keys that scripts touch, from the run's key (`scripts/lib/run.lua` lists them). Here are only those that
are read or written outside of scripts: bodies and payloads, which never pass through Lua.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.common.errors import InvalidInputError

if TYPE_CHECKING:
    from services.common.types import LeaseId, Partition, RunId, TaskId

RUNS_KEY = "hr:runs"
"""Set of the ids of all runs, until nothing is left of them."""
LIVE_KEY = "hr:live"
"""Set of run ids that may still have something to sweep. These two are the only keys outside of a run's slot."""

_MAX_ID_BYTES = 128
_ID = re.compile(r"[A-Za-z0-9._-]+")


def check_id(text: str, what: str) -> None:
    """Refuse an id that cannot be part of a key.

    Raises:
        InvalidInputError: it is empty, too long or has other characters.
    """
    if len(text) > _MAX_ID_BYTES or not _ID.fullmatch(text):
        raise InvalidInputError(f"{what} is {text[:_MAX_ID_BYTES]!r}; use 1 to {_MAX_ID_BYTES} of A-Z a-z 0-9 . _ -")


def run_key(run_id: RunId) -> str:
    """Key of the run's hash; the scripts derive every other key of the run from it."""
    check_id(run_id, "run_id")
    return f"hr:{{{run_id}}}:run"


def run_pattern(run_id: RunId) -> str:
    """Glob pattern of every key of the run. No character of an id means something in a pattern."""
    return f"{run_key(run_id).removesuffix('run')}*"


def deleted_key(run_id: RunId) -> str:
    """Key that says that the run is being deleted; the last one to go."""
    return f"{run_key(run_id).removesuffix('run')}deleted"


def body_key(run_id: RunId, partition: Partition, task_id: TaskId, content: str) -> str:
    """Key of a task's body, named by its content so that two versions of a task cannot meet."""
    return f"hr:{{{run_id}}}:{partition}:task:{task_id}/{content}"


def payload_key(run_id: RunId, lease_id: LeaseId) -> str:
    """Key of a trajectory as one lease produced it."""
    partition, _, name = lease_id.partition("/")
    return f"hr:{{{run_id}}}:{partition}:payload:{name}"
