"""The causal operator without training, against a root finder on its definition, quadrature and operator.md."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

from causal_priors.errors import UserError
from causal_priors.theory.linear_mass import linear_far_mass, linear_far_mass_limit
from causal_priors.theory.transport_prior import (
    amplitude,
    bounded_scores,
    far_mass_of,
    profile,
    profile_mass,
    ratio_bound,
    ratios_to_constant,
    solve,
    transport_rows,
    window_mass_limit,
    window_mass_of,
)


def by_definition(scores, strength):
    """Rows of P from the fixed point as operator.md writes it, one root finder a row, no logarithms."""
    n = len(scores)
    u, rows = np.zeros(n), []

    def plan(i, candidate):
        masses = [math.exp(scores[i][j]) * candidate for j in range(i + 1)]
        received = [sum(math.exp(scores[k][j]) * u[k] for k in range(j, i)) + masses[j] for j in range(i + 1)]
        return np.array([m * c**-strength for m, c in zip(masses, received, strict=True)])

    for i in range(n):
        u[i] = brentq(lambda candidate, i=i: plan(i, candidate).sum() - 1, 1e-12, 1e6, xtol=1e-16, rtol=1e-15)
        rows.append(plan(i, u[i]))
    return np.log(u), rows


def rows_of(scores):
    return lambda i: np.array(scores[i - 1][:i], dtype=np.float64)


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9])
def test_rows_are_the_fixed_point(strength):
    scores = np.random.default_rng(3).normal(0, 1.5, size=(12, 12))
    potentials, rows = by_definition(scores, strength)
    found = list(transport_rows(12, strength, rows_of(scores)))
    assert [a for a, _ in found] == pytest.approx(potentials, abs=1e-11)
    for (_, row), expected in zip(found, rows, strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


def test_golden_rows_of_constant_scores():
    found = solve(5, 0.5, range(1, 6))
    expected = [
        [1],
        [0.352201, 0.647799],
        [0.193746, 0.305879, 0.500376],
        [0.127832, 0.188977, 0.266574, 0.416617],
        [0.093092, 0.132515, 0.175623, 0.237097, 0.361673],
    ]
    assert [found.rows[i].tolist() for i in range(1, 6)] == [pytest.approx(row, abs=5.01e-7) for row in expected]
    assert found.potentials == pytest.approx([0, -0.868350, -1.384792, -1.751177, -2.034031], abs=5.01e-7)
    strong = solve(5, 0.9, [5])
    assert strong.rows[5] == pytest.approx([0.008576, 0.034434, 0.093675, 0.228412, 0.634904], abs=5.01e-7)
    assert strong.potentials[4] == pytest.approx(-4.542810, abs=5.01e-7)


def test_golden_rows_of_wavy_scores():
    scores = [[0.3 * math.sin(3 * i + 2 * j) + 0.5 * math.cos(i - 2 * j) for j in range(5)] for i in range(5)]
    found = solve(5, 0.5, [5], rows_of(scores))
    assert found.rows[5] == pytest.approx([0.059907, 0.137077, 0.260915, 0.187643, 0.354458], abs=5.01e-7)
    assert found.potentials == pytest.approx([-0.5, -1.017861, -1.585812, -1.790761, -2.021390], abs=5.01e-7)


def test_strength_zero_is_softmax():
    scores = np.random.default_rng(4).normal(0, 2, size=(9, 9))
    for i, (_, row) in enumerate(transport_rows(9, 0.0, rows_of(scores)), start=1):
        weights = np.exp(scores[i - 1, :i])
        assert row == pytest.approx(weights / weights.sum(), rel=1e-12)


def test_a_constant_on_a_row_changes_nothing_and_one_on_a_column_does():
    scores = np.random.default_rng(5).normal(size=(9, 9))
    plain = solve(9, 0.7, [9], rows_of(scores)).rows[9]
    assert solve(9, 0.7, [9], rows_of(scores + np.arange(9)[:, None])).rows[9] == pytest.approx(plain, abs=1e-12)
    assert np.abs(solve(9, 0.7, [9], rows_of(scores + np.arange(9))).rows[9] - plain).max() > 0.01


def test_wide_scores_at_high_strength_stay_finite():
    found = list(transport_rows(300, 0.95, bounded_scores(50.0, 0)))
    assert all(math.isfinite(potential) for potential, _ in found)
    assert max(abs(row.sum() - 1) for _, row in found) < 1e-12


@pytest.mark.parametrize("strength", [-0.1, 1.0, math.nan])
def test_strengths_without_a_solution_are_refused(strength):
    with pytest.raises(UserError, match=r"strength = .*: is not in"):
        next(transport_rows(3, strength))


@pytest.mark.parametrize("strength", [0.0, 0.25, 0.5, 0.75])
def test_the_profile_is_a_density_and_its_mass_its_integral(strength):
    # With s = ln 1/t the singular end of the integral becomes s^-strength, which quad takes as a weight.
    def mass(share):
        end = -math.log1p(-share)
        return quad(lambda s: math.exp(-s), 0, end, weight="alg", wvar=(-strength, 0))[0] / math.gamma(1 - strength)

    assert profile_mass(0.125, strength) == pytest.approx(mass(0.125), rel=1e-10)
    assert profile_mass(1 - 1e-12, strength) == pytest.approx(1, abs=1e-11)
    assert profile(0.5, strength) == pytest.approx(
        (profile_mass(0.5 + 1e-5, strength) - profile_mass(0.5 - 1e-5, strength)) / 2e-5, rel=1e-7
    )


def test_amplitude_and_window_limit_in_closed_form():
    assert amplitude(0.5) == pytest.approx(1 / math.pi, rel=1e-14)
    assert amplitude(0.0) == 1
    assert window_mass_limit(2, 100, 0.5) == pytest.approx((1 + 2**-0.5) / (math.sqrt(math.pi) * 10), rel=1e-14)


def test_masses_of_rows_by_hand():
    row = np.array([0.5, 0.3, 0.2])
    assert window_mass_of(row, 2) == pytest.approx(0.5)
    assert far_mass_of({2: np.array([0.25, 0.75]), 3: row}, 3, 2) == pytest.approx((0 + 0.5) / 2)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([0.5, 2.0]), st.booleans())
def test_no_bounded_score_passes_the_bound(seed, strength, bound, extreme):
    draws = np.random.default_rng(seed).uniform(-bound, bound, size=(20, 20))
    scores = bound * np.sign(draws) if extreme else draws
    limit = ratio_bound(bound, strength)
    pairs = zip(transport_rows(20, strength, rows_of(scores)), transport_rows(20, strength), strict=True)
    for (_, plan), (_, constant) in pairs:
        assert np.all(plan / constant <= limit)
        assert np.all(constant / plan <= limit)


def test_ratios_are_taken_over_all_positions_and_bins_over_the_last_rows():
    found = ratios_to_constant((16, 32), 0.5, (1.0, 2.0), seed=7)
    scores = bounded_scores(2.0, 7)
    plans = [plan for _, plan in transport_rows(32, 0.5, scores)]
    constants = [plan for _, plan in transport_rows(32, 0.5)]
    ratios = [plan / constant for plan, constant in zip(plans, constants, strict=True)]
    assert found[2.0].smallest == {n: min(r.min() for r in ratios[:n]) for n in (16, 32)}
    assert found[2.0].largest == {n: max(r.max() for r in ratios[:n]) for n in (16, 32)}
    # Rows 29 .. 32 (the last eighth); row 32 splits into eight bins of four keys.
    total = sum(np.array([[row[: i // 8].sum() for row in (plans[i - 1], constants[i - 1])] for i in range(29, 33)]))
    assert found[2.0].bins[32][0] == pytest.approx(total[0] / total[1], rel=1e-12)
    assert len(found[2.0].bins[16]) == 8
    assert found[1.0].largest[32] < found[2.0].largest[32]


@pytest.mark.parametrize("slope", [0.5, 2**-8])
def test_far_mass_of_a_linear_prior_is_the_direct_sum(slope):
    def far(keys):
        weights = np.exp(-slope * np.arange(keys))
        return weights[8:].sum() / weights.sum()

    assert linear_far_mass(slope, 64, 8) == pytest.approx(np.mean([far(keys) for keys in range(57, 65)]), rel=1e-12)
    assert linear_far_mass(slope, 10, 8) == pytest.approx(np.mean([far(keys) for keys in range(3, 11)]), rel=1e-12)
    assert linear_far_mass(slope, 10**6, 8) == pytest.approx(linear_far_mass_limit(slope, 8), rel=1e-12)
