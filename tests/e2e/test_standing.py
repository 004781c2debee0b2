"""A trainer that stops consuming is named by everybody who waits for it."""

import json

import pytest

from services.common.standing import newest_trainer
from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_a_frozen_trainer_is_named_by_the_rollouters_the_status_and_the_launcher(runs, tmp_path, started):
    config = system.write_config(tmp_path, directory=runs)
    flags = system.script_flags(tmp_path, seconds_per_token=0.04)
    run = system.start("run", str(config), "--run.name", "stopped", *flags, "--trainer.total_steps", "40")
    started.append(run)
    folder = runs / "stopped"

    def trainer_is_known():
        stats = system.ask(folder, "get_stats")
        return stats is not None and newest_trainer(stats) is not None and system.newest_step(folder) >= 1

    system.wait_for(trainer_is_known, seconds=120, what="the first step and a heartbeat of the trainer")
    trainer = system.processes(run.pid)["trainer"]
    name = f"-{trainer.pid} has not consumed for "
    trainer.suspend()

    def status_names_it():
        status = system.run("status", str(folder), timeout=30).stdout.replace("\n", " ")
        return name in status and "groups ready" in status and "silent" in status

    log = folder / "logs" / "rollouter-0.log"
    system.wait_for(status_names_it, seconds=25, what="a status that names the trainer")
    system.wait_for(lambda: name in log.read_text(), seconds=25, what="a rollouter's log that names the trainer")
    trainer.resume()

    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    (line,) = [line for line in out.splitlines() if name in line]
    assert "last heartbeat" in line
    assert line.endswith("see logs/trainer.log")
    assert "the trainer consumes again" in out
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)


def test_data_that_has_ended_is_not_taken_for_a_producer_that_died(runs, tmp_path):
    rows = tmp_path / "few.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(8)))
    config = system.write_config(tmp_path, directory=runs, data=rows)
    flags = system.script_flags(tmp_path, seconds_per_token=0.01)
    done = system.run("run", str(config), "--run.name", "short", "--data.max_epochs", "1", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the data has ended after 2 of 6 steps" in done.stdout
