"""Bootstrap intervals against what they promise, on data whose true mean is known."""

import math

import numpy as np
import pytest

from causal_priors.exploratory.bootstrap import LEAST, paired_interval

REPEATS, BLOCKS = 250, 64


@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_intervals_cover_the_truth_at_about_their_rate(shape):
    """Stated band: .89 to .99 for a nominal .95. 250 repeats have a standard error of .014, and at 64 blocks of
    exponentially distributed differences the method itself is known to fall short by some hundredths."""
    generator = np.random.default_rng(7)
    draw = {"normal": generator.standard_normal, "skewed": lambda size: generator.exponential(size=size) - 1}[shape]
    found = [paired_interval(0.3 + draw((REPEATS, BLOCKS))[row]) for row in range(REPEATS)]
    covered = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert 0.89 <= covered <= 0.99
    # Both shapes have variance one: the interval of a mean is about 2 x 1.96 / 8 wide.
    assert np.mean([one.high - one.low for one in found]) == pytest.approx(2 * 1.96 / 8, rel=0.1)


def test_a_known_effect_is_found_and_none_is_not():
    noise = np.random.default_rng(3).normal(scale=0.02, size=BLOCKS)
    noise -= noise.mean()
    with_effect, without = paired_interval(0.05 + noise), paired_interval(noise)
    assert with_effect.low < 0.05 < with_effect.high
    assert with_effect.sign == "up"
    assert paired_interval(noise - 0.05).sign == "down"
    assert without.low < 0 < without.high
    assert without.sign == "open"


def test_what_does_not_differ_is_exactly_zero():
    found = paired_interval(np.zeros(BLOCKS))
    assert (found.mean, found.low, found.high, found.sign) == (0.0, 0.0, 0.0, "zero")
    assert math.isnan(found.neighbours)


def test_the_same_difference_in_every_block_has_no_spread():
    found = paired_interval(np.full(BLOCKS, 0.1))
    assert (found.mean, found.low, found.high, found.sign) == (0.1, 0.1, 0.1, "up")


@pytest.mark.parametrize("factor", [1e-14, 1e8])
def test_the_size_of_the_numbers_does_not_matter(factor):
    values = np.random.default_rng(5).normal(0.1, 1, BLOCKS)
    one, other = paired_interval(values), paired_interval(values * factor)
    assert other.low == pytest.approx(one.low * factor, rel=1e-9)
    assert other.high == pytest.approx(one.high * factor, rel=1e-9)


def test_differences_that_are_all_but_equal_have_a_narrow_interval():
    found = paired_interval(0.01 + 1e-16 * np.arange(BLOCKS))
    assert 0.01 <= found.low <= found.mean <= found.high <= 0.01 + 1e-14


def test_the_same_numbers_give_the_same_interval_whatever_was_asked_before():
    values = np.random.default_rng(6).normal(size=BLOCKS)
    first = paired_interval(values)
    paired_interval(values[:-3])
    assert paired_interval(values) == first


def test_too_few_blocks_give_a_mean_and_no_interval():
    values = np.arange(LEAST - 1.0)
    found = paired_interval(values)
    assert found.mean == values.mean()
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.sign == "few blocks"
    assert not math.isnan(paired_interval(np.arange(float(LEAST))).low)


def test_correlation_of_neighbours():
    rising = paired_interval(np.arange(100.0))
    turning = paired_interval(np.tile([1.0, -1.0], 50))
    assert rising.neighbours > 0.9
    assert turning.neighbours == pytest.approx(-0.99)
