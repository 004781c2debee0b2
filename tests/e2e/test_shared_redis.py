"""Two trainings at once on one Redis, each with a queue service of its own."""

import asyncio
import json

import pytest

from services.queue.store import QueueStore
from tests.e2e import system
from tests.redis_server import running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMES = ("twin", "twin.b")


def test_two_runs_that_share_a_redis_neither_meet_nor_leave_anything(runs, tmp_path, started):
    config = system.write_config(tmp_path, directory=runs)
    with running_server(tmp_path) as url:
        flags = system.script_flags(tmp_path, seconds_per_token=0.01, max_slots=16)
        words = ("run", str(config), "--queue.redis_url", url, "--quiet", "--trainer.total_steps", "4", *flags)
        started += [system.start(*words, "--run.name", name) for name in NAMES]
        for process in started:
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, out + err
        for name in NAMES:
            ledger = json.loads((runs / name / "ledger.json").read_text())
            assert (ledger["lost"], ledger["trained_twice"], ledger["dead_letters"]) == (0, 0, [])
            assert ledger["train"]["tasks"]["consumed"] == 16
            steps = system.read_lines(runs / name / "metrics.jsonl")
            assert [entry["step"] for entry in steps] == [1, 2, 3, 4]
        asyncio.run(_both_are_finished_and_deletable(url))


async def _both_are_finished_and_deletable(url):
    store = QueueStore(url)
    redis = store._redis._redis
    first, second = await store.retirement.list_runs()
    for summary, name in ((first, "twin-"), (second, "twin.b-")):
        assert summary.run_id.startswith(name)
        assert (summary.finished, summary.open_tasks, summary.payload_bytes) == (True, 0, 0)
        # What a finished run still holds: its hash, and counters, marks and names of each partition.
        keys = await redis.keys(f"hr:{{{summary.run_id}}}:*")
        assert len(keys) <= 12
        assert sum([await redis.memory_usage(key) for key in keys]) < 64 * 1024
    await store.retirement.delete(first.run_id)
    assert [summary.run_id for summary in await store.retirement.list_runs()] == [second.run_id]
    await store.retirement.delete(second.run_id)
    assert await redis.dbsize() == 0
    await store.close()
