"""A trainer that sleeps through its replacement changes nothing when it wakes up, as processes of their own.

Each service is started by hand, as a cluster does it: there nothing kills the frozen one before its successor begins.
"""

import json
import signal
from collections import defaultdict

import pytest

from services.common.telemetry import names
from tests.e2e import system
from tests.e2e.relay import Relay
from tests.redis_server import free_port, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_STEPS = 14
_NAME = "two"
_REPLACED = "headrace trainer: a newer trainer has taken the run over, so this one ends"


@pytest.fixture
def begin(runs, tmp_path, started):
    """Starts one service of the run after the other; each writes into a log of its own."""
    folder = runs / _NAME
    folder.mkdir()
    (folder / "run_id").write_text(_NAME)
    config = folder / "config.toml"
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("queue", "reward")}
    text = system.write_config(tmp_path, directory=runs).read_text().replace("[run]", f'[run]\nname = "{_NAME}"')
    text = text.replace("total_steps = 6", f"total_steps = {_STEPS}")
    for name, address in addresses.items():
        text = text.replace(f"[{name}]", f'[{name}]\naddress = "{address}"')
    config.write_text(text)

    with running_server(tmp_path) as url:

        def start(module, log, *flags):
            words = (f"services.{module}", "--config", str(config), *flags)
            process = system.start_module(*words, environment={"HEADRACE_REDIS_URL": url}, output=tmp_path / log)
            started.append(process)
            return process

        yield start


def test_a_frozen_trainer_that_was_replaced_can_neither_commit_nor_publish(begin, runs, tmp_path):
    folder, first_port, second_port = runs / _NAME, free_port(), free_port()
    with Relay(first_port) as relay:
        queue, reward = begin("queue", "queue.log"), begin("reward", "reward.log")
        script = system.script_flags(tmp_path, seconds_per_token=0.06)
        first = begin("trainer", "first.log", f"--trainer.address=127.0.0.1:{first_port}")
        rollouter = begin("rollouter", "rollouter.log", *script, f"--trainer.address=127.0.0.1:{relay.port}")
        system.wait_for(lambda: system.newest_step(folder) >= 3, seconds=100, what="the third step")
        first.send_signal(signal.SIGSTOP)
        old = _owner(folder)

        second = begin("trainer", "second.log", "--run.resume=true", f"--trainer.address=127.0.0.1:{second_port}")
        relay.turn(second_port)
        system.wait_for(lambda: len(_steps_of(folder, after=old)) >= 3, seconds=100, what="steps of the second trainer")
        # For a moment the rollouters hear the first one again, if it says anything.
        relay.turn(first_port)
        first.send_signal(signal.SIGCONT)
        assert first.wait(timeout=30) == 4, (tmp_path / "first.log").read_text()
        relay.turn(second_port)
        assert second.poll() is None, "the run was over before the first trainer woke up"

        assert second.wait(timeout=100) == 0, (tmp_path / "second.log").read_text()
        assert rollouter.wait(timeout=30) == 0, (tmp_path / "rollouter.log").read_text()
    for process in (queue, reward):
        process.terminate()
        assert process.wait(timeout=30) == 0

    said = (tmp_path / "first.log").read_text().splitlines()
    assert [line for line in said if _REPLACED in line] == said[-1:]
    assert "Traceback" not in "".join(said)
    _check_account(folder)
    _check_versions(folder, first=first.pid, second=second.pid)


def _check_account(folder):
    """Everything is accounted for, and the first trainer's steps end where the second's begin."""
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    tasks = ledger["train"]["tasks"]
    assert (tasks["consumed"], tasks["open"]) == (4 * _STEPS, 0)
    lines = system.read_lines(folder / "metrics.jsonl")
    epochs = [entry["epoch"] for entry in lines]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2
    assert sorted({entry["step"] for entry in lines}) == list(range(1, _STEPS + 1))
    assert max(entry["staleness_max"] for entry in lines) <= 2


def _check_versions(folder, *, first, second):
    """No number names two sets of weights, and after the takeover rollouters adopted the second's versions only."""
    published, adopted = defaultdict(dict), []
    for maker, span in _spans(folder):
        facts = {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}
        version, digest = int(facts.get(names.POLICY_VERSION, -1)), facts.get(names.POLICY_DIGEST)
        if span["name"] == names.SPAN_POLICY_PUBLISH:
            published[int(maker.rpartition("-")[2])][version] = digest
        elif span["name"] == names.SPAN_POLICY_ADOPT and digest:
            adopted.append((int(span["endTimeUnixNano"]), version, digest))
    assert set(published) == {first, second}
    assert max(published[first]) < min(published[second])
    versions = [(version, digest) for _, version, digest in sorted(adopted)]
    is_second = [published[second].get(version) == digest for version, digest in versions]
    assert is_second == sorted(is_second), versions
    assert sum(is_second) >= 3
    assert all(published[first].get(version) == digest for version, digest in versions[: is_second.index(True)])


def _spans(folder):
    """Each span with the name of the process that wrote it."""
    for batch in system.read_lines(folder / "traces.jsonl"):
        for resource in batch["resourceSpans"]:
            about = {entry["key"]: entry["value"].get("stringValue") for entry in resource["resource"]["attributes"]}
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield about[names.SERVICE_INSTANCE_ID], span


def _owner(folder):
    """Epoch of the trainer that owns the run directory."""
    return json.loads((folder / "version.json").read_text())["epoch"]


def _steps_of(folder, *, after):
    """Steps of trainers newer than an epoch."""
    return [entry for entry in system.read_lines(folder / "metrics.jsonl") if entry["epoch"] > after]
