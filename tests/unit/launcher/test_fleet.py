"""How the fleet's processes are described; starting them for real is the end-to-end tests' business."""

import os
from pathlib import Path

from services.common.config import RunConfig
from services.launcher.fleet import Fleet, FleetPlan, failed, health_probe, service_environment
from services.launcher.ports import free_port
from services.launcher.redis_server import embedded_redis
from services.launcher.run_directory import open_run_directory
from services.launcher.supervisor import EndKind, ServiceEnd


def _fleet(tmp_path, *, embedded=True):
    sections = {
        "model": {"path": "m"},
        "data": {"source": "rows.jsonl"},
        "run": {"directory": str(tmp_path), "name": "demo"},
        "trainer": {"threads": 2},
        "engine": {"threads": 0},
    }
    config = RunConfig.model_validate(sections)
    directory = open_run_directory(config, Path("task.toml"))
    redis = embedded_redis(directory.redis, append_fsync="everysec") if embedded else None
    plan = FleetPlan(
        config=config,
        directory=directory,
        redis_url=redis.url if redis else "redis://:hunter2@elsewhere:1",
        embedded=redis,
        rollouter_addresses=("127.0.0.1:7001", "127.0.0.1:7002"),
    )
    return Fleet(plan, report=lambda _: None, on_trainer_line=lambda _: None), directory


def _commands(fleet, num_starts=0):
    return {supervised.name: supervised.service.command(num_starts) for supervised in fleet.all}


def test_redis_comes_first_and_each_rollouter_has_name_and_address(tmp_path):
    fleet, directory = _fleet(tmp_path)
    commands = _commands(fleet)
    assert list(commands) == ["redis", "queue", "reward", "trainer", "rollouter-0", "rollouter-1"]
    assert commands["rollouter-1"].argv[-4:] == ("--address", "127.0.0.1:7002", "--replica-id", "rollouter-1")
    assert str(directory.config_file) in commands["queue"].argv
    directory.close()


def test_only_the_queue_learns_the_address_of_redis(tmp_path):
    fleet, directory = _fleet(tmp_path, embedded=False)
    commands = _commands(fleet)
    assert [name for name, command in commands.items() if "hunter2" in str(command)] == ["queue"]
    assert not any("hunter2" in word for command in commands.values() for word in command.argv)
    directory.close()


def test_a_trainer_that_comes_back_resumes(tmp_path):
    fleet, directory = _fleet(tmp_path)
    assert "--run.resume=true" not in _commands(fleet)["trainer"].argv
    assert "--run.resume=true" in _commands(fleet, 1)["trainer"].argv
    assert "--run.resume=true" not in _commands(fleet, 1)["queue"].argv
    directory.close()


def test_services_know_their_run_their_parent_and_their_threads(tmp_path):
    fleet, directory = _fleet(tmp_path)
    commands = _commands(fleet)
    for name in ("queue", "reward", "trainer", "rollouter-0"):
        assert commands[name].environment["HEADRACE_RUN_ID"] == directory.run_id
        assert commands[name].environment["HEADRACE_PARENT_PID"] == str(os.getpid())
    assert commands["trainer"].environment["OMP_NUM_THREADS"] == "2"
    assert commands["reward"].environment["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in commands["rollouter-0"].environment
    assert "OMP_NUM_THREADS" not in service_environment(directory, threads=0)
    directory.close()


def test_only_the_trainer_has_a_measure_of_progress(tmp_path):
    fleet, directory = _fleet(tmp_path)
    assert [one.name for one in fleet.all if one.service.progress] == ["trainer"]
    assert fleet.trainer.service.progress() == 0
    (directory.path / "metrics.jsonl").write_text('{"step": 4, "loss": 0.1}\n')
    assert fleet.trainer.service.progress() == 4
    directory.close()


async def test_nobody_serves_where_nobody_listens():
    assert not await health_probe(f"127.0.0.1:{free_port()}")()


def test_what_counts_as_a_failed_run():
    assert failed(ServiceEnd(kind=EndKind.GAVE_UP, code=1))
    assert failed(ServiceEnd(kind=EndKind.DONE, code=3))
    assert not failed(ServiceEnd(kind=EndKind.DONE, code=0))
    assert not failed(ServiceEnd(kind=EndKind.STOPPED, code=1))
