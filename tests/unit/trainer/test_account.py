from services.common.types import Group, GroupOutcome, TaskId
from services.trainer.account import Account


def make_group(sequence):
    return Group(
        task_id=TaskId(f"{sequence:08d}"),
        attempt=1,
        sequence=sequence,
        group_size=2,
        oldest_version=0,
        trajectories=(),
        put_times=(),
    )


def state_of(account):
    return account.state(next_sequence=9, num_dropped=2, policy_version=3, epoch=4, seconds=5.0)


def test_a_state_holds_the_results_since_the_last_one_and_the_number_of_its_commit():
    account = Account()
    account.note_step([make_group(1), make_group(2)], num_tokens=10)
    first = state_of(account)
    account.settle(first)
    account.note_step([make_group(0)], num_tokens=5)

    second = state_of(account)

    assert [result.task_id for result in first.results] == ["00000001", "00000002"]
    assert (first.commit_number, first.first_open_sequence, first.ended_sequences) == (1, 0, (1, 2))
    assert [(result.task_id, result.attempt, result.outcome) for result in second.results] == [
        ("00000000", 1, GroupOutcome.CONSUMED)
    ]
    assert (second.commit_number, second.first_open_sequence, second.ended_sequences) == (2, 3, ())
    assert (second.step, second.num_consumed, second.num_tokens) == (2, 3, 15)
    assert (second.next_sequence, second.num_dropped, second.policy_version, second.epoch) == (9, 2, 3, 4)


def test_a_resumed_account_goes_on_where_the_state_stands():
    account = Account()
    account.note_step([make_group(0), make_group(2)], num_tokens=10)

    resumed = Account(state_of(account))

    assert not resumed.has_pending
    assert (resumed.step, resumed.commit_number, resumed.num_consumed) == (1, 1, 2)
    assert [sequence in resumed.frontier for sequence in range(4)] == [True, False, True, False]


def test_what_was_stepped_after_a_state_was_taken_stays_pending():
    account = Account()
    account.note_step([make_group(0)], num_tokens=1)
    state = state_of(account)
    account.note_step([make_group(1)], num_tokens=1)

    account.settle(state)

    assert [result.task_id for result in state_of(account).results] == ["00000001"]


def test_what_the_queue_ended_is_neither_kept_one_by_one_nor_offered_again():
    account = Account()
    account.note_step([make_group(1), make_group(4)], num_tokens=1)

    account.note_ended(1, (2, 5))

    state = state_of(account)
    assert (state.first_open_sequence, state.ended_sequences) == (3, (4, 5))
    assert (state.num_consumed, [result.sequence for result in state.results]) == (2, [1, 4])
