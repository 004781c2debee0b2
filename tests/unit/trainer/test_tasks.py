from services.common.types import Partition
from services.trainer.dataset import RunData
from services.trainer.tasks import training_tasks, validation_tasks
from tests.unit.trainer.fakes import make_config, make_rows


def test_a_task_follows_from_configuration_and_sequence_number_alone(tmp_path):
    config = make_config(tmp_path, data={"shuffle": True}, rollout={"temperature": 0.7, "stop": ("x",)})
    data = RunData(train=make_rows(5), validation=(), num_excluded=0)

    first, again = training_tasks(config, data), training_tasks(config, data)

    task = first.task(7)
    assert task == again.task(7)
    assert (task.task_id, task.sequence, task.partition) == ("00000007", 7, Partition.TRAIN)
    assert (task.group_size, task.sampling.temperature, task.sampling.stop) == (2, 0.7, ("x",))
    assert task.messages == first.row(7).messages
    assert first.num_rows == 5


def test_the_number_of_tasks_is_bounded_by_epochs(tmp_path):
    data = RunData(train=make_rows(5), validation=(), num_excluded=0)

    assert training_tasks(make_config(tmp_path), data).limit is None
    assert training_tasks(make_config(tmp_path, data={"max_epochs": 2}), data).limit == 10


def test_validation_has_its_own_temperature_and_group_size(tmp_path):
    config = make_config(tmp_path, validation={"size": 3, "temperature": 0.0, "group_size": 4})
    data = RunData(train=make_rows(5), validation=make_rows(3), num_excluded=0)

    task = validation_tasks(config, data).task(1)

    assert (task.partition, task.group_size, task.sampling.temperature) == (Partition.VALIDATION, 4, 0.0)
    assert validation_tasks(config, RunData(train=make_rows(5), validation=(), num_excluded=0)) is None
