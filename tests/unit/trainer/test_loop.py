"""The loop against an in-memory queue: whole runs, deaths at bad moments, a store that forgets."""

import asyncio
import json
import shutil
from itertools import pairwise

import pytest

from services.common.errors import FencedError, InternalError, ReconcileRequiredError, StalledError
from services.common.types import Partition, TaskId
from services.trainer.run_directory import read_lines
from services.trainer.status import TrainerState
from tests.unit.trainer.fakes import FakeQueue, KilledError, make_config, make_rows, make_trainer


def die():
    raise KilledError("the process died")


def ids(count):
    return [TaskId(f"{sequence:08d}") for sequence in range(count)]


async def finished(config, queue, **options):
    """Run trainer after trainer until the run is done, like a supervisor; returns the last one."""
    trainer = make_trainer(config, queue, **options)
    await trainer.loop.run()
    return trainer


async def test_a_run_consumes_exactly_the_groups_it_needs_in_order(tmp_path):
    queue = FakeQueue()

    trainer = await finished(make_config(tmp_path), queue)

    assert trainer.status.state is TrainerState.FINISHED
    assert [task_id for task_id, _ in queue.trained] == ids(12)
    assert queue.streams[Partition.TRAIN].fed - queue.streams[Partition.TRAIN].refilled == 12
    assert queue.finished
    assert trainer.backend.steps_done == 6
    assert trainer.shelf.versions == list(range(7))


async def test_a_finished_run_leaves_model_ledger_summary_and_a_line_per_step(tmp_path):
    trainer = await finished(make_config(tmp_path), FakeQueue())

    root = trainer.directory.root
    assert (root / "final" / "weight.txt").is_file()
    assert json.loads((root / "ledger.json").read_text())["lost"] == 0
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["steps"], summary["versions"], summary["trajectories"]) == (6, 7, 24)
    assert [line["step"] for line in read_lines(root / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert trainer.lines[0].startswith("[Step 1/6] 4 rollouts, reward 0.50, pass@1 50.0 %, version 0, staleness 0.0")
    sample = read_lines(root / "samples.jsonl")[0]
    assert sample["prompt"][0]["content"] == "What is 0 + 1?"


async def test_consumption_commits_with_the_checkpoints_and_numbers_have_no_gaps(tmp_path):
    queue = FakeQueue()

    await finished(make_config(tmp_path, trainer={"checkpoint_every": 4}), queue)

    assert [(number, len(results)) for number, results in queue.commits] == [(1, 8), (2, 4), (3, 0)]


@pytest.mark.parametrize("hook", ["before", "after"])
@pytest.mark.parametrize("death", [1, 2, 3])
async def test_a_death_around_a_commit_loses_nothing_and_trains_nothing_twice(tmp_path, hook, death):
    queue, config = FakeQueue(), make_config(tmp_path)
    calls = []

    def die_at_the_right_one():
        calls.append(1)
        if len(calls) == death:
            die()

    getattr(queue, hook)["commit_batch"] = die_at_the_right_one
    with pytest.raises(KilledError):
        await finished(config, queue)
    trainer = await finished(config, queue)

    assert sorted(task_id for task_id, _ in queue.trained) == ids(12)
    assert trainer.backend.steps_done == 6
    assert [step["step"] for step in trainer.directory.steps()] == [1, 2, 3, 4, 5, 6]


async def test_the_commit_of_the_checkpoint_is_repeated_with_its_own_number(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)
    queue.before["commit_batch"] = die
    with pytest.raises(KilledError):
        await finished(config, queue)
    del queue.before["commit_batch"]
    assert queue.commit_number == 0

    await finished(config, queue)

    assert queue.commits[0][0] == 1
    assert [result.task_id for result in queue.commits[0][1]] == ids(4)


async def test_a_death_in_a_step_repeats_the_steps_since_the_checkpoint(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path, async_={"max_staleness": 0})
    reference = await finished(make_config(tmp_path / "undisturbed", async_={"max_staleness": 0}), FakeQueue())
    trainer = make_trainer(config, queue)
    trainer.backend.fail_at = 3
    with pytest.raises(KilledError):
        await trainer.loop.run()
    assert trainer.status.state is TrainerState.FAILED

    resumed = await finished(config, queue)

    assert resumed.lines[0] == "[Trainer] resumed at step 2"
    assert resumed.backend.value.tolist() == reference.backend.value.tolist()
    assert [task_id for task_id, _ in queue.trained] == ids(12)


async def test_versions_only_grow_over_restarts_and_the_first_one_is_a_branch(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)
    queue.after["commit_batch"] = die
    with pytest.raises(KilledError):
        await finished(config, queue)
    queue.after.clear()
    queue.replica_version = 40

    trainer = await finished(config, queue)

    versions = [version for version, _ in queue.registered]
    assert all(earlier < later for earlier, later in pairwise(versions))
    assert trainer.shelf.versions[0] == 41
    assert [branch for version, branch in queue.registered if version == 41] == [True]
    assert queue.registered[0] == (0, False)


async def test_a_death_before_the_first_checkpoint_begins_anew_with_the_same_tasks(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)
    trainer = make_trainer(config, queue)
    trainer.backend.fail_at = 1
    with pytest.raises(KilledError):
        await trainer.loop.run()

    await finished(config, queue)

    assert [task_id for task_id, _ in queue.trained] == ids(12)


async def test_a_wiped_queue_is_reconciled_and_fed_again(tmp_path):
    config, queue = make_config(tmp_path), FakeQueue()
    trainer = make_trainer(config, queue)
    trainer.backend.fail_at = 5
    with pytest.raises(KilledError):
        await trainer.loop.run()
    wiped = FakeQueue()
    wiped.epoch = queue.epoch

    await finished(config, wiped)

    assert [task_id for task_id, _ in wiped.trained] == ids(12)[8:]
    assert wiped.reconciled[0]["commit_number"] == 2
    assert wiped.reconciled[0]["first_open_sequence"] == 8
    assert wiped.streams[Partition.TRAIN].consumed == 12


async def test_a_queue_that_forgets_a_commit_while_the_trainer_runs_is_reconciled(tmp_path):
    queue = FakeQueue()

    def forget():
        if queue.commit_number == 2:
            queue.commit_number = 1
            queue.after.clear()

    queue.after["commit_batch"] = forget

    trainer = await finished(make_config(tmp_path), queue)

    assert queue.reconciled
    assert trainer.backend.steps_done == 6
    assert sorted(task_id for task_id, _ in queue.trained) == ids(12)


async def test_a_queue_that_forgets_a_commit_at_the_very_end_is_reconciled(tmp_path):
    queue = FakeQueue()

    def forget():
        if queue.commit_number == 3:
            queue.commit_number = 2
            queue.after.clear()

    queue.after["commit_batch"] = forget

    trainer = await finished(make_config(tmp_path), queue)

    assert queue.finished
    assert queue.reconciled[0]["commit_number"] == 3
    assert trainer.status.state is TrainerState.FINISHED


async def test_checkpoints_that_are_gone_while_the_queue_has_commits_are_refused(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)
    queue.after["commit_batch"] = die
    with pytest.raises(KilledError):
        await finished(config, queue)
    queue.after.clear()
    shutil.rmtree(tmp_path / "demo" / "checkpoints")

    with pytest.raises(ReconcileRequiredError, match="no whole checkpoint"):
        await finished(config, queue)


async def test_a_stop_keeps_what_was_done_and_the_run_goes_on_later(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path, trainer={"checkpoint_every": 100})
    trainer = make_trainer(config, queue)
    steps = []

    def stop_after_three():
        steps.append(1)
        if len(steps) == 4:
            trainer.loop.request_stop()

    queue.after["lease_batch"] = stop_after_three
    await trainer.loop.run()
    assert trainer.status.state is TrainerState.STOPPED
    assert [task_id for task_id, _ in queue.trained] == ids(6)
    assert not queue.finished

    resumed = await finished(config, queue)

    assert resumed.lines[0] == "[Trainer] resumed at step 3"
    assert [task_id for task_id, _ in queue.trained] == ids(12)


async def test_a_run_without_rollouters_ends_with_a_sentence_that_says_what_it_waits_for(tmp_path):
    queue = FakeQueue(rollouters=False)

    with pytest.raises(StalledError, match=r"no group became ready for 0.3 s: 0 of 2 groups ready, 8 members wait"):
        await finished(make_config(tmp_path, trainer={"stall_seconds": 0.3}), queue)
    assert json.loads((tmp_path / "demo" / "ledger.json").read_text())["train"]["tasks"]["open"] == 4
    assert not (tmp_path / "demo" / "summary.json").exists()


async def test_a_trainer_that_was_replaced_ends_as_fenced(tmp_path):
    queue = FakeQueue()
    trainer = make_trainer(make_config(tmp_path), queue)

    def replaced():
        queue.epoch += 1

    queue.after["commit_batch"] = replaced

    with pytest.raises(FencedError):
        await trainer.loop.run()
    assert trainer.status.state is TrainerState.FAILED


async def test_a_group_that_is_too_old_at_the_step_is_a_defect(tmp_path):
    queue = FakeQueue()
    queue._refill = lambda stream, use_version: None
    config = make_config(tmp_path, async_={"max_staleness": 3})
    trainer = make_trainer(config.model_copy(update={"async_": make_config(tmp_path).async_}), queue)
    trainer.loop._run_settings = make_trainer(config, queue).loop._run_settings

    with pytest.raises(InternalError, match=r"trajectory train/0000000\d/0/0 has tokens of version 0"):
        await trainer.loop.run()


async def test_stale_groups_are_refilled_by_the_queue_and_no_token_passes_the_bound(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path, trainer={"total_steps": 8})
    queue.after["commit_batch"] = die
    with pytest.raises(KilledError):
        await finished(config, queue)
    queue.after.clear()

    trainer = await finished(config, queue)

    assert queue.streams[Partition.TRAIN].refilled > 0
    assert max(step["staleness_max"] for step in trainer.directory.steps()) <= 1


async def test_dead_lettered_groups_are_replaced_by_later_tasks(tmp_path):
    queue = FakeQueue()
    queue.unscorable = {TaskId("00000003")}

    trainer = await finished(make_config(tmp_path), queue)

    trained = sorted(task_id for task_id, _ in queue.trained)
    assert trained == sorted(set(ids(13)) - {TaskId("00000003")})
    assert trainer.backend.steps_done == 6
    (letter,) = json.loads((trainer.directory.root / "ledger.json").read_text())["dead_letters"]
    assert (letter["task_id"], letter["reasons"]) == ("00000003", ["reward_error", "reward_error"])


async def test_the_end_of_data_ends_the_run_with_a_smaller_last_step(tmp_path):
    queue = FakeQueue()

    trainer = await finished(make_config(tmp_path, data={"max_epochs": 1}), queue, rows=make_rows(5))

    assert trainer.status.state is TrainerState.FINISHED
    assert trainer.backend.steps_done == 3
    assert [task_id for task_id, _ in queue.trained] == ids(5)


async def test_several_updates_per_version_publish_and_checkpoint_at_versions_only(tmp_path):
    queue = FakeQueue()
    config = make_config(tmp_path, async_={"max_staleness": 0, "updates_per_version": 2}, trainer={"total_steps": 5})

    trainer = await finished(config, queue)

    assert [step["version"] for step in trainer.directory.steps()] == [0, 0, 1, 1, 2]
    assert trainer.shelf.versions == [0, 1, 2, 3]
    assert [(number, len(results)) for number, results in queue.commits] == [(1, 4), (2, 4), (3, 2), (4, 0)]


async def test_held_out_tasks_are_measured_before_between_and_after(tmp_path):
    queue = FakeQueue()
    config = make_config(tmp_path, validation={"size": 3, "every": 4, "group_size": 2})

    trainer = await finished(config, queue, held_out=make_rows(3))

    measured = trainer.directory.validations()
    assert [(entry["step"], entry["version"]) for entry in measured] == [(0, 0), (4, 4), (6, 6)]
    assert all(entry["num_attempts"] == 6 for entry in measured)
    summary = json.loads((trainer.directory.root / "summary.json").read_text())
    assert summary["pass_rate_before"] == summary["pass_rate_after"] == 0.5
    assert trainer.lines[0].startswith("[Validation] step 0, version 0: pass@1 50.0 %")


async def test_a_measurement_that_was_made_is_not_repeated_after_a_death(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path, validation={"size": 3})
    trainer = make_trainer(config, queue, held_out=make_rows(3))
    trainer.backend.fail_at = 0
    with pytest.raises(KilledError):
        await trainer.loop.run()

    resumed = await finished(config, queue, held_out=make_rows(3))

    assert [entry["step"] for entry in resumed.directory.validations()] == [0, 6]


async def test_a_death_after_the_final_commit_only_writes_the_reports_again(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)

    def die_at_the_end():
        if queue.finished:
            die()

    queue.after["commit_batch"] = die_at_the_end
    with pytest.raises(KilledError):
        await finished(config, queue)
    queue.after.clear()

    trainer = await finished(config, queue)

    assert trainer.status.state is TrainerState.FINISHED
    assert json.loads((trainer.directory.root / "ledger.json").read_text())["trained_twice"] == 0
    assert json.loads((trainer.directory.root / "summary.json").read_text())["steps"] == 6


async def test_what_ended_a_task_beside_the_loop_ends_the_loop_by_its_own_class(tmp_path):
    queue = FakeQueue()
    trainer = make_trainer(make_config(tmp_path), queue)

    async def broken(*_args, **_options):
        await asyncio.sleep(0)
        raise KilledError("publishing broke")

    queue.register_version = broken

    with pytest.raises(KilledError, match="publishing broke"):
        await trainer.loop.run()


async def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(tmp_path):
    queue, config = FakeQueue(), make_config(tmp_path)
    trainer = make_trainer(config, queue)
    trainer.backend.fail_at = 5
    with pytest.raises(KilledError):
        await trainer.loop.run()
    newest = max(trainer.directory.checkpoints.iterdir())
    (newest / "tensors.safetensors").write_bytes(b"")

    resumed = await finished(config, queue)

    assert resumed.lines[0].startswith(
        "[Trainer] skipped a damaged checkpoint, step-00000004-epoch-1: tensors.safetens"
    )
    assert resumed.lines[1] == "[Trainer] resumed at step 2"
    assert resumed.backend.steps_done == 6
    assert sorted(task_id for task_id, _ in queue.trained)[-1] == ids(12)[-1]
