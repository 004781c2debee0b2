from hypothesis import given
from hypothesis import strategies as st

from services.trainer.frontier import Frontier


def test_numbers_below_the_first_open_one_are_not_kept():
    frontier = Frontier()
    for sequence in (1, 2, 4, 0):
        frontier.end(sequence)

    assert (frontier.first_open, frontier.ended) == (3, (4,))
    assert [sequence in frontier for sequence in range(6)] == [True, True, True, False, True, False]


@given(st.lists(st.integers(0, 30)), st.integers(0, 10))
def test_it_is_the_set_of_what_has_ended(sequences, first_open):
    frontier = Frontier(first_open)
    for sequence in sequences:
        frontier.end(sequence)

    ended = {*range(first_open), *sequences}
    restored = Frontier(frontier.first_open, frontier.ended)
    for sequence in range(35):
        assert (sequence in frontier) == (sequence in ended) == (sequence in restored)
    assert frontier.first_open not in frontier


@given(st.lists(st.integers(0, 20)), st.integers(0, 10), st.lists(st.integers(0, 30)), st.integers(0, 25))
def test_merging_is_the_union(ours, first_open, theirs, their_first):
    frontier = Frontier(first_open, ours)

    frontier.merge(their_first, theirs)

    ended = {*range(max(first_open, their_first)), *(at for at in ours if at >= first_open), *theirs}
    assert [at for at in range(35) if at in frontier] == sorted(ended)
    assert frontier.first_open not in frontier
    assert all(at > frontier.first_open for at in frontier.ended)
