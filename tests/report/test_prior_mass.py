"""Window mass of priors against sums over every key."""

import numpy as np
import pytest

from causal_priors.report.prior_mass import edited_mass, head_mass, kerple_mass, linear_mass

N = np.array([8, 64, 512, 5000, 20_000, 300_000])


def summed(weights, window):
    """W(window; n) by adding weights up."""
    totals = np.cumsum(weights)
    return np.array([totals[min(window, n) - 1] / totals[n - 1] for n in N])


LAG = np.arange(N.max(), dtype=float)


@pytest.mark.parametrize(("power", "rate"), [(0.3, 0.1), (1.0, 2.0), (1.8, 0.5), (2.5, 1.0)])
def test_kerple(power, rate):
    assert kerple_mass(power, rate, 8, N) == pytest.approx(summed((1 + rate * LAG) ** -power, 8), rel=1e-7)


@pytest.mark.parametrize("slope", [0.5, 0.00390625])
def test_linear(slope):
    assert linear_mass(slope, 8, N) == pytest.approx(summed(np.exp(-slope * LAG), 8), rel=1e-9)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_cap_and_repair_of_a_power_law(exponent):
    length, plain = 64, (1 + LAG) ** -exponent
    capped = np.where(length < LAG, (1.0 + length) ** -exponent, plain)
    assert edited_mass("cap", exponent, length, 8, N) == pytest.approx(summed(capped, 8), rel=1e-9)
    repaired = plain * np.exp(-np.maximum(0, LAG - length) / length)
    assert edited_mass("repair", exponent, length, 8, N) == pytest.approx(summed(repaired, 8), rel=1e-9)


def test_a_head_is_known_by_what_it_reports():
    assert head_mass({"exponent": 1.2}, 8, N) == pytest.approx(summed((1 + LAG) ** -1.2, 8), rel=1e-9)
    assert head_mass({"exponent": 1.2, "rate": 0.5}, 8, N) == pytest.approx(
        summed((1 + 0.5 * LAG) ** -1.2, 8), rel=1e-7
    )
    assert head_mass({"slope": 0.1}, 8, N) == pytest.approx(summed(np.exp(-0.1 * LAG), 8), rel=1e-9)
