import numpy as np

from services.rollouter.engine.randomness import uniforms


def draw(seeds, positions):
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.int64))


def test_a_number_depends_on_its_seed_and_position_only():
    alone = draw([7], [3])
    among = draw([1, 7, 9], [3, 3, 3])
    assert among[1] == alone[0]
    assert len({draw([7], [3])[0], draw([7], [4])[0], draw([8], [3])[0]}) == 3


def test_numbers_are_pinned_on_every_machine():
    assert draw([0, 1, 2**63 - 1], [0, 1, 1000]).tolist() == [
        0.6524484863740321,
        0.9435642308648544,
        0.2601441165976939,
    ]


def test_numbers_are_uniform_and_below_one():
    numbers = draw(np.arange(200).repeat(200), np.tile(np.arange(200), 200))
    assert 0.0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1.0
    histogram = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert np.all(np.abs(histogram - 2000) < 250)


def test_neighbouring_seeds_and_positions_are_uncorrelated():
    by_seed = draw(np.arange(5001), np.zeros(5001))
    by_position = draw(np.zeros(5001), np.arange(5001))
    for numbers in (by_seed, by_position):
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
