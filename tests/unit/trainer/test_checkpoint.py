import json
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from services.common.errors import FencedError, StorageError
from services.common.types import DropReason, GroupOutcome, GroupResult, TaskId
from services.trainer import checkpoint
from services.trainer.backend.port import BackendState
from services.trainer.checkpoint import CheckpointState, CheckpointStore

STATE = CheckpointState(
    step=10,
    next_sequence=44,
    commit_number=2,
    results=(
        GroupResult(task_id=TaskId("00000001"), attempt=1, outcome=GroupOutcome.CONSUMED),
        GroupResult(task_id=TaskId("00000002"), attempt=0, outcome=GroupOutcome.DROPPED, drop_reason=DropReason.STALE),
    ),
    first_open_sequence=40,
    ended_sequences=(41, 43),
    num_consumed=42,
    num_filtered=1,
    num_dropped=3,
    policy_version=12,
    epoch=5,
    num_tokens=999,
    seconds=1.5,
)


def backend_state(value=1.0):
    return BackendState(
        tensors={"model.weight": torch.full((4,), value), "optimizer.step.weight": torch.tensor(3.0)},
        numbers={"steps_done": 10},
    )


def at_step(step):
    return replace(STATE, step=step)


def never():
    """Nobody took the run over."""


def test_a_checkpoint_comes_back_as_it_was_written(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.newest() is None

    store.save(backend_state(), STATE, check=never)

    found = store.newest()
    assert found.run == STATE
    assert found.backend.numbers == {"steps_done": 10}
    assert torch.equal(found.backend.tensors["model.weight"], torch.ones(4))
    assert found.backend.tensors["optimizer.step.weight"].shape == ()


def test_only_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (5, 10, 15):
        store.save(backend_state(), at_step(step), check=never)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010-epoch-5", "step-00000015-epoch-5"]
    assert store.newest().run.step == 15


def cut_tensors(folder):
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(folder):
    path = folder / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def lose(name):
    return lambda folder: (folder / name).unlink()


def name_other_files(folder):
    (folder / "manifest.json").write_text(json.dumps({"files": {}}))


@pytest.mark.parametrize(
    "damage",
    [cut_tensors, flip_a_bit, lose("manifest.json"), lose("state.json"), lose("tensors.safetensors"), name_other_files],
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, damage):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(backend_state(), at_step(5), check=never)
    damage(store.save(backend_state(), at_step(10), check=never))

    assert store.newest().run.step == 5


def test_a_half_written_one_is_not_looked_at_and_goes_with_the_next(tmp_path):
    half = tmp_path / ".staging-step-00000020-epoch-4"
    half.mkdir()
    (half / "tensors.safetensors").write_bytes(b"half")
    store = CheckpointStore(tmp_path, keep=2)
    assert store.newest() is None

    store.save(backend_state(), at_step(5), check=never)

    assert not half.exists()


def test_a_damaged_one_is_replaced_when_its_step_is_done_again(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    cut_tensors(store.save(backend_state(1.0), at_step(10), check=never))

    store.save(backend_state(2.0), at_step(10), check=never)

    assert torch.equal(store.newest().backend.tensors["model.weight"], torch.full((4,), 2.0))


def test_a_trainer_that_was_replaced_neither_overwrites_nor_outdoes_its_successor(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(backend_state(6.0), replace(STATE, step=10, epoch=6), check=never)
    running = tmp_path / ".staging-step-00000015-epoch-6"
    running.mkdir()

    store.save(backend_state(5.0), replace(STATE, step=10, epoch=5), check=never)
    store.save(backend_state(5.0), replace(STATE, step=20, epoch=5), check=never)

    assert (store.newest().run.epoch, store.newest().run.step) == (6, 10)
    assert running.exists()


def test_a_checkpoint_of_another_format_is_skipped(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(backend_state(), at_step(10), check=never)
    folder = tmp_path / "step-00000010-epoch-5"
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": 99}))
    described = {name: checkpoint._describe(folder / name) for name in ("tensors.safetensors", "state.json")}
    (folder / "manifest.json").write_text(json.dumps({"files": described}))

    assert store.newest() is None


@contextmanager
def full_disk(num_bytes):
    """Let no file grow beyond a few bytes: a write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [16, 300])
def test_a_full_disk_leaves_the_checkpoint_before_and_says_what_to_do(tmp_path, num_bytes):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(backend_state(), at_step(5), check=never)

    with (
        full_disk(num_bytes),
        pytest.raises(StorageError, match=r"checkpoint of step 10 cannot be written .* make room"),
    ):
        store.save(backend_state(), at_step(10), check=never)

    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005-epoch-5"]
    assert store.newest().run.step == 5
    store.save(backend_state(), at_step(10), check=never)
    assert store.newest().run.step == 10


@pytest.mark.parametrize("num_checks", [0, 1])
def test_a_trainer_that_was_replaced_while_it_wrote_leaves_nothing_behind(tmp_path, num_checks):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(backend_state(), at_step(5), check=never)
    checks = [None] * num_checks

    def check():
        if not checks:
            raise FencedError("replaced")
        checks.pop()

    with pytest.raises(FencedError):
        store.save(backend_state(), at_step(10), check=check)

    store.remove_debris(epoch=6)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005-epoch-5"]


def test_a_successor_takes_away_what_its_predecessor_is_writing(tmp_path):
    store, successor = CheckpointStore(tmp_path, keep=2), CheckpointStore(tmp_path, keep=2)
    asked = []

    def check():
        asked.append(1)
        if len(asked) == 2:
            # The successor begins between the last look and the rename.
            successor.remove_debris(epoch=6)
        if len(asked) == 3:
            raise FencedError("replaced")

    with pytest.raises(FencedError):
        store.save(backend_state(), at_step(10), check=check)

    assert list(tmp_path.iterdir()) == []


def test_what_was_skipped_is_told(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(backend_state(), at_step(5), check=never)
    cut_tensors(store.save(backend_state(), at_step(10), check=never))
    (tmp_path / "step-00000015-epoch-5").mkdir()

    assert store.newest().run.step == 5

    assert [text.split(":")[0] for text in store.damaged] == ["step-00000015-epoch-5", "step-00000010-epoch-5"]
    assert "tensors.safetensors does not match its digest" in store.damaged[1]
