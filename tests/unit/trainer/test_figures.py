import pytest

from services.common.errors import InternalError
from services.common.types import Group, TaskId
from services.trainer.figures import batch_figures, check_age, mean, staleness
from tests.factories import make_row, make_trajectory


def make_group(*trajectories, sequence=0):
    return Group(
        task_id=TaskId(f"{sequence:08d}"),
        attempt=0,
        sequence=sequence,
        group_size=len(trajectories),
        oldest_version=min(trajectory.oldest_version for trajectory in trajectories),
        trajectories=trajectories,
        put_times=tuple(0.0 for _ in trajectories),
    )


def test_staleness_is_weighed_by_tokens_and_pass_rate_by_trajectories():
    young = make_trajectory(reward=1.0, version=5, rows=(make_row(num_sampled=6, version=5),))
    old = make_trajectory(member=1, reward=0.5, version=3, rows=(make_row(num_sampled=2, version=3),))

    figures = batch_figures([make_group(young, old)], version=5, pass_threshold=1.0)

    assert (figures.num_groups, figures.num_trajectories, figures.num_tokens) == (1, 2, 8)
    assert (figures.reward_mean, figures.pass_rate) == (0.75, 0.5)
    assert (figures.staleness_mean, figures.staleness_max) == (0.5, 2)
    assert staleness(old, version=5) == 2


def test_an_empty_batch_has_figures_too():
    figures = batch_figures([], version=5, pass_threshold=1.0)

    assert (figures.num_tokens, figures.staleness_mean, figures.staleness_max, mean([])) == (0, 0.0, 0, 0.0)


@pytest.mark.parametrize(("version", "is_right"), [(2, False), (3, True), (5, True), (6, False), (-1, False)])
def test_a_token_outside_the_bound_is_an_error_that_names_the_trajectory(version, is_right):
    # The trajectory itself claims to be young: what counts is what its tokens say.
    group = make_group(make_trajectory(sequence=7, version=5, rows=(make_row(version=version),)))

    if is_right:
        check_age([group], version=5, max_staleness=2)
    else:
        with pytest.raises(InternalError, match=f"trajectory train/00000007/0/0 has tokens of version {version}"):
            check_age([group], version=5, max_staleness=2)
