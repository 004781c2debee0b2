"""A sample's seed depends on run seed, sequence and member and on nothing else."""

from __future__ import annotations

from services.common.seeds import sample_seed


def test_the_seed_of_a_sample_never_changes_between_releases():
    assert sample_seed(1, 2, 3) == 1138364116778193076


def test_neighbours_have_different_seeds():
    seeds = {sample_seed(1, sequence, member) for sequence in range(50) for member in range(8)}
    assert len(seeds) == 400


def test_seeds_fit_into_a_signed_64_bit_integer():
    assert all(0 <= sample_seed(seed, 0, 0) < 2**63 for seed in range(100))
