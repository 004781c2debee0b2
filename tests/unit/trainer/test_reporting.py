import json

import pytest

from services.common.types import DeadLetter, Partition, RunId, TaskId
from services.trainer.collecting import Batch
from services.trainer.dataset import RunData
from services.trainer.figures import batch_figures
from services.trainer.reporting import Reporter, StepTimes
from services.trainer.run_directory import RunDirectory, read_lines
from services.trainer.status import TrainerStatus
from services.trainer.tasks import training_tasks
from services.trainer.validation import Measurement
from tests.factories import make_row, make_trajectory
from tests.unit.trainer.fakes import FakeBackend, FakeQueue, make_config, make_rows
from tests.unit.trainer.test_figures import make_group

TIMES = StepTimes(wait_seconds=1.0, train_seconds=2.0, publish_seconds=0.5, checkpoint_seconds=0.5)


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path, trainer={"total_steps": 200})


@pytest.fixture
def lines():
    return []


@pytest.fixture
def reporter(config, lines):
    source = training_tasks(config, RunData(train=make_rows(4), validation=(), num_excluded=0))
    status = TrainerStatus(run_id=RunId("demo"), total_steps=200)
    return Reporter(RunDirectory.of(config), status, source=source, config=config, announce=lines.append)


def report(reporter, step, *, num_sampled=1020):
    rows = (make_row(num_sampled=num_sampled, version=10),)
    group = make_group(
        *(make_trajectory(member=member, reward=float(member < 3), version=10, rows=rows) for member in range(20))
    )
    batch = Batch(groups=[group], end_of_data=False, lease_time=0.0, num_ready=3)
    reporter.step(
        batch,
        figures=batch_figures([group], version=12, pass_threshold=1.0),
        metrics=FakeBackend().step([]),
        step=step,
        version=12,
        times=TIMES,
    )


def test_a_step_is_one_line_for_people(reporter, lines):
    report(reporter, 12)

    assert lines == [
        "[Step 12/200] 20 rollouts, reward 0.15, pass@1 15.0 %, version 12, staleness 2.0 (max 2), 5.1k tok/s"
    ]


@pytest.mark.parametrize(("num_sampled", "rate"), [(10, "50"), (1_000_000, "5.0M")])
def test_rates_have_a_letter(reporter, lines, num_sampled, rate):
    report(reporter, 1, num_sampled=num_sampled)

    assert lines[0].endswith(f", {rate} tok/s")


def test_a_step_is_one_line_of_figures_and_a_few_samples(config, reporter):
    reporter.began(epoch=7, step=0, resumed=False)
    report(reporter, 12)

    root = RunDirectory.of(config).root
    values = read_lines(root / "metrics.jsonl")[0]
    expected = {"step": 12, "epoch": 7, "version": 12, "num_trajectories": 20, "num_tokens": 20400, "loss": 1.0}
    assert expected.items() <= values.items()
    assert (values["wait_share"], values["staleness_max"], values["queue_ready"]) == (0.25, 2, 3)
    others = {"grad_norm", "learning_rate", "clip_fraction", "approx_kl", "train_seconds", "publish_seconds", "time"}
    assert others <= values.keys()
    sample = read_lines(root / "samples.jsonl")[0]
    assert (sample["completion"], sample["reward"], sample["version"], sample["staleness"]) == ("1", 1.0, 10, 2)


def test_the_status_has_the_newest_figures(reporter):
    report(reporter, 12)

    status = reporter._status
    assert status.step == 12
    assert status.metrics["tokens_per_second"] == 5100.0
    assert status.report().metrics == status.metrics


def make_measurement(step, pass_rate):
    return Measurement(
        step=step,
        version=step,
        pass_rate=pass_rate,
        reward_mean=pass_rate,
        num_tasks=4,
        num_attempts=4,
        num_missing=0,
        time=1.0,
    )


def test_measurements_of_steps_that_were_undone_count_as_not_made(reporter, lines):
    reporter.validated(make_measurement(0, 0.25))
    reporter.validated(make_measurement(20, 0.5))
    assert lines[0] == "[Validation] step 0, version 0: pass@1 25.0 %, reward 0.25 (4 held-out tasks, 4 attempts)"

    reporter.began(epoch=2, step=10, resumed=True)

    assert reporter.validated_step == 0
    assert lines[-1] == "[Trainer] resumed at step 10"


async def test_the_end_writes_ledger_and_summary(config, reporter):
    reporter.validated(make_measurement(0, 0.25))
    report(reporter, 1)
    report(reporter, 2)
    reporter.validated(make_measurement(2, 0.75))

    letter = DeadLetter(
        partition=Partition.TRAIN,
        task_id=TaskId("7"),
        attempt=1,
        sequence=7,
        time=9.5,
        reasons=("lapsed", "engine_error"),
    )
    reporter.finished(await FakeQueue().get_ledger(), [letter], seconds=10.0, num_versions=3)

    root = RunDirectory.of(config).root
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["pass_rate_before"], summary["pass_rate_after"]) == (0.25, 0.75)
    assert (summary["steps"], summary["trajectories"], summary["tokens_per_second"]) == (2, 40, 4080.0)
    assert (summary["staleness_mean"], summary["staleness_max"], summary["lost"]) == (2.0, 2, 0)
    assert "epoch" in summary
    assert "epochs" not in summary
    ledger = json.loads((root / "ledger.json").read_text())
    assert ledger["lost"] == ledger["train"]["tasks"]["lost"] == 0
    assert set(ledger) == {"lost", "trained_twice", "train", "validation", "dead_letters"}
    assert ledger["dead_letters"] == [
        {
            "partition": "train",
            "task_id": "7",
            "attempt": 1,
            "sequence": 7,
            "time": 9.5,
            "reasons": ["lapsed", "engine_error"],
        }
    ]
