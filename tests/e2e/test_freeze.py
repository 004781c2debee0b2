"""A rollouter that hangs and wakes up again can corrupt nothing, whatever happened while it was away."""

import json
import signal

import pytest

from tests.e2e import system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_LEASE_SECONDS = 2.0


@pytest.fixture
def begin(runs, tmp_path, started):
    """Starts a run with one rollouter of its own and another, `sleepy`, that was started by hand."""

    def start(name, *, steps):
        config = system.write_config(tmp_path, directory=runs)
        flags = system.script_flags(tmp_path, seconds_per_token=0.08)
        lengths = ("--trainer.total_steps", str(steps), "--queue.lease_seconds", str(_LEASE_SECONDS))
        run = system.start("run", str(config), "--run.name", name, *flags, *lengths)
        started.append(run)
        folder = runs / name
        system.wait_for(lambda: system.newest_step(folder) >= 1, seconds=120, what="the first step")
        sleepy = system.join(folder, "sleepy")
        started.append(sleepy)
        system.wait_for(lambda: system.done_by(folder, "sleepy") >= 4, seconds=40, what="work of the replica")
        return run, sleepy, folder

    return start


def _freeze(process, folder):
    """Stop the replica in the middle of its work, so that leases of it lapse."""
    before = system.train_ledger(folder).trajectories.lapsed
    process.send_signal(signal.SIGSTOP)

    def has_lapsed():
        ledger = system.train_ledger(folder)
        return ledger is not None and ledger.trajectories.lapsed > before

    system.wait_for(has_lapsed, seconds=20, what="a lapse of the frozen replica's leases")


def _check_end(run, folder, *, steps):
    """The run finishes in order and within its bound."""
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    ledger = json.loads((folder / "ledger.json").read_text())
    assert (ledger["lost"], ledger["trained_twice"]) == (0, 0)
    metrics = {entry["step"]: entry for entry in system.read_lines(folder / "metrics.jsonl")}
    assert sorted(metrics) == list(range(1, steps + 1))
    assert max(entry["staleness_max"] for entry in metrics.values()) <= 2
    return ledger["train"]["trajectories"]


def test_a_replica_that_hung_longer_than_its_leases_is_fenced_and_works_on(begin):
    run, sleepy, folder = begin("hung", steps=40)
    _freeze(sleepy, folder)
    done = system.done_by(folder, "sleepy")
    sleepy.send_signal(signal.SIGCONT)
    system.wait_for(lambda: system.done_by(folder, "sleepy") >= done + 4, seconds=20, what="new work of the replica")
    assert run.poll() is None, "the run was over before the replica worked again"
    members = _check_end(run, folder, steps=40)
    # A late result is in its group if nobody else's was, else a duplicate; either way its issue ends exactly once.
    assert members["lapsed"] + members["duplicate"] > 0


def test_a_replica_that_hung_over_the_end_of_its_run_ends_with_a_sentence(begin):
    run, sleepy, folder = begin("over", steps=15)
    _freeze(sleepy, folder)
    _check_end(run, folder, steps=15)
    sleepy.send_signal(signal.SIGCONT)
    out, err = sleepy.communicate(timeout=40)
    assert sleepy.returncode == 0, out + err
    assert f"the run in {folder} has finished; this rollouter ends too" in out + err


def test_a_replica_that_hung_while_the_trainer_was_replaced_follows_the_new_one(begin):
    run, sleepy, folder = begin("replaced", steps=40)
    _freeze(sleepy, folder)
    system.processes(run.pid)["trainer"].kill()
    metrics = folder / "metrics.jsonl"
    system.wait_for(
        lambda: len({entry["epoch"] for entry in system.read_lines(metrics)}) == 2, seconds=60, what="a second trainer"
    )
    version = system.read_lines(metrics)[-1]["version"]
    done = system.done_by(folder, "sleepy")
    sleepy.send_signal(signal.SIGCONT)

    def follows():
        report = system.replicas(folder)["sleepy"]
        return report.status.policy_version >= version and report.status.metrics["num_trajectories"] >= done + 4

    system.wait_for(follows, seconds=30, what="work of the replica under the new trainer's version")
    assert run.poll() is None, "the run was over before the replica worked again"
    _check_end(run, folder, steps=40)
