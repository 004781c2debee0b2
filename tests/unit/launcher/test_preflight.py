"""What is checked before anything starts."""

import json
from pathlib import Path

import pytest

from services.common.config import RunConfig
from services.common.errors import ConfigError
from services.launcher.ports import free_port
from services.launcher.preflight import check_can_go_on, check_redis, chosen_addresses, prepare_model
from services.launcher.resolve import place_run, write_config
from services.launcher.run_directory import open_run_directory


def _config(**sections):
    return RunConfig.model_validate({"model": {"path": "m"}, "data": {"source": "rows.jsonl"}, **sections})


def test_every_service_and_rollouter_gets_an_address_of_its_own():
    port = free_port()
    chosen = chosen_addresses(_config(reward={"address": f"127.0.0.1:{port}"}, rollout={"replicas": 3}))
    assert chosen.services["reward.address"] == f"127.0.0.1:{port}"
    assert len(chosen.rollouters) == 3
    assert len({*chosen.services.values(), *chosen.rollouters}) == 6


async def test_a_named_redis_must_answer(monkeypatch):
    monkeypatch.delenv("HEADRACE_REDIS_URL", raising=False)
    await check_redis(_config())
    with pytest.raises(ConfigError, match="cannot be reached"):
        await check_redis(_config(queue={"redis_url": f"redis://127.0.0.1:{free_port()}"}))


async def test_the_sentence_of_the_preparation_is_the_error(tmp_path):
    (tmp_path / "rows.jsonl").write_text("oops\n")
    config = _config(run={"directory": str(tmp_path), "name": "bad"}, data={"source": str(tmp_path / "rows.jsonl")})
    directory = open_run_directory(config, Path("task.toml"))
    write_config(place_run(config, directory), directory)
    with pytest.raises(ConfigError, match=r"^.*rows.jsonl line 1: is not JSON") as caught:
        await prepare_model(directory, on_progress=lambda _: None)
    assert not caught.value.message.startswith("headrace")
    directory.discard()


def test_only_a_run_that_finished_with_fewer_steps_cannot_go_on(tmp_path):
    run = {"directory": str(tmp_path), "name": "done"}
    wanted = _config(run=run, trainer={"total_steps": 8}, model={"build": "tiny_qwen3"})
    directory = open_run_directory(wanted, Path("task.toml"))
    check_can_go_on(wanted, directory)
    (directory.path / "summary.json").write_text(json.dumps({"steps": 6, "total_steps": 8}))
    # A kill came between the two files of the result.
    check_can_go_on(_config(run=run, trainer={"total_steps": 9}), directory)
    (directory.path / "ledger.json").write_text(json.dumps({"lost": 0, "trained_twice": 0}))
    check_can_go_on(wanted, directory)
    more = _config(run=run, trainer={"total_steps": 9}, model={"build": "tiny_qwen3"})
    with pytest.raises(ConfigError, match=r'finished its 8 steps .* is 9\); .*/done/final --model.build ""$'):
        check_can_go_on(more, directory)
    directory.close()
