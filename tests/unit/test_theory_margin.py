"""Window mass and margin selection against the specification, direct sums and the Hurwitz zeta function."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import zeta

from causal_priors.arms import ARMS
from causal_priors.artifacts import write_signed_json
from causal_priors.errors import UserError
from causal_priors.scale import Scale, Size
from causal_priors.theory.margin import TOLERANCES, far_mass_growth, margin, margin_stage, read_margins
from causal_priors.theory.window_mass import (
    far_mass,
    far_mass_limit,
    harmonic,
    mean_far_mass,
    power_integral,
    power_sum,
    window_mass,
    window_mass_bounds,
)

LENGTHS = (512, 1024, 4096, 32768)
FAR_MASS_W64 = {
    0.5: (0.6554, 0.7628, 0.8842, 0.9595, 1.0),
    1.0: (0.2974, 0.3656, 0.4662, 0.5677, 1.0),
    1.1: (0.2310, 0.2832, 0.3591, 0.4336, 0.6228),
    1.5: (0.0626, 0.0728, 0.0843, 0.0915, 0.0953),
    2.0: (0.0082, 0.0088, 0.0093, 0.0094, 0.0094),
}


def direct_sum(first, last, exponent):
    return math.fsum(m**-exponent for m in range(first + 1, last + 1))


@pytest.mark.parametrize("exponent", FAR_MASS_W64)
def test_far_mass_golden_table(exponent):
    found = [far_mass(exponent, n, 64) for n in LENGTHS] + [far_mass_limit(exponent, 64)]
    assert found == pytest.approx(FAR_MASS_W64[exponent], abs=5.01e-5)


def test_far_mass_of_log_fixed_heads():
    exponents = np.geomspace(0.7, 1.0, 8)
    assert mean_far_mass(exponents, 512, 64) == pytest.approx(0.4141, abs=5.01e-5)
    assert mean_far_mass(exponents, 4096, 64) == pytest.approx(0.6301, abs=5.01e-5)


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0, 1.0 + 1e-13, 1.7, 3.5, 19.0])
@pytest.mark.parametrize(
    ("first", "last"), [(0, 1), (0, 63), (0, 64), (0, 65), (5, 40), (60, 70), (64, 5000), (3000, 3001), (7, 7)]
)
def test_power_sum_is_the_sum(first, last, exponent):
    assert float(power_sum(first, last, exponent)) == pytest.approx(direct_sum(first, last, exponent), rel=1e-14, abs=0)


@pytest.mark.parametrize("exponent", [1.05, 1.5, 2.0, 6.0])
def test_huge_lengths_agree_with_hurwitz_zeta(exponent):
    for n in (10**6, 10**9):
        assert float(harmonic(n, exponent)) == pytest.approx(zeta(exponent, 1) - zeta(exponent, n + 1), rel=1e-13)


def test_harmonic_at_one_has_its_logarithmic_form():
    n = 10.0**9
    assert float(harmonic(n, 1.0)) == pytest.approx(math.log(n) + np.euler_gamma + 1 / (2 * n), rel=1e-15)


@given(
    exponent=st.floats(0.0, 6.0),
    window=st.integers(1, 300),
    extra=st.integers(0, 10**9),
)
def test_integral_bounds_hold_and_mass_is_a_share(exponent, window, extra):
    n = window + extra
    mass = float(window_mass(window, n, exponent))
    lower, upper = (float(bound) for bound in window_mass_bounds(window, n, exponent))
    slack = 1 + 1e-12
    assert lower <= mass * slack
    assert mass <= upper * slack
    assert 0 < mass <= slack


@given(exponent=st.floats(0.0, 6.0), shift=st.floats(-1e-9, 1e-9))
def test_power_integral_is_continuous_in_the_exponent(exponent, shift):
    near = float(power_integral(2, 1000, exponent + shift))
    assert near == pytest.approx(float(power_integral(2, 1000, exponent)), rel=1e-8)


def test_far_mass_is_the_average_over_the_last_queries():
    exponent, n, window = 1.2, 20, 6
    rows = []
    for query in range(n - window, n):
        weights = [(1 + query - key) ** -exponent for key in range(query + 1)]
        rows.append(sum(weights[key] for key in range(query + 1) if query - key >= window) / sum(weights))
    assert far_mass(exponent, n, window) == pytest.approx(np.mean(rows), rel=1e-13)


def test_far_mass_without_far_keys_is_zero():
    assert far_mass(0.7, 32, 32) == 0.0


def test_far_mass_approaches_its_limit():
    assert far_mass(1.5, 10**9, 64) == pytest.approx(far_mass_limit(1.5, 64), abs=1e-3)
    assert far_mass(3.0, 10**9, 64) == pytest.approx(far_mass_limit(3.0, 64), rel=1e-9)


@pytest.mark.parametrize(
    ("window", "n0", "n1", "tolerance", "delta"),
    [
        (64, 512, 4096, 0.1, 0.1721),
        (64, 512, 4096, 0.05, 0.3361),
        (64, 512, 4096, 0.03, 0.4393),
        (64, 512, 4096, 0.02, 0.5154),
        (64, 512, 4096, 0.01, 0.6384),
        (64, 512, 4096, 0.005, 0.7556),
        (8, 64, 512, 0.05, 0.5249),
        (8, 64, 512, 0.02, 0.7780),
        (8, 64, 512, 0.005, 1.1206),
    ],
)
def test_margin_golden(window, n0, n1, tolerance, delta):
    assert margin(window, n0, n1, tolerance) == pytest.approx(delta, abs=5.01e-5)


def test_margin_meets_the_tolerance_and_is_the_smallest():
    delta = margin(64, 512, 4096, 0.02)
    assert far_mass_growth(1 + delta, 64, 512, 4096) <= 0.02 < far_mass_growth(1 + delta - 1e-9, 64, 512, 4096)


def test_margin_is_zero_where_the_harmonic_prior_already_meets_the_tolerance():
    assert margin(64, 512, 4096, 0.2) == 0.0


def test_growth_peaks_below_one():
    grid = np.arange(0.3, 1.0, 0.01)
    growth = [far_mass_growth(exponent, 64, 512, 4096) for exponent in grid]
    peak = int(np.argmax(growth))
    assert grid[peak] == pytest.approx(0.67, abs=0.02)
    assert growth[peak] == pytest.approx(0.244, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((64, 512, 4096, 0.0), "tolerance = 0.0"),
        ((64, 512, 4096, -1.0), "tolerance = -1.0"),
        ((64, 512, 4096, math.nan), "tolerance = nan"),
        ((512, 512, 4096, 0.1), "window = 512"),
        ((0, 512, 4096, 0.1), "window = 0"),
        ((64, 512, 512, 0.1), "n1 = 512"),
        ((1, 2, 16, 1e-12), "cannot be met"),
    ],
)
def test_margin_refuses(arguments, words):
    with pytest.raises(UserError, match=words):
        margin(*arguments)


def a_scale(length):
    size = Size(64, 2, 4, length, 300, 1024, 3e-3, 0.1, 0.1)
    return Scale("micro", "exploratory", "bpe", 1024, 65536, 8, "float64", 4.0, {"S": size})


def test_margin_stage_writes_the_registered_arms(tmp_path):
    path = tmp_path / "theory" / "margins.json"
    margin_stage(a_scale(64), path)
    assert read_margins(path) == {
        "log-margin-t050": pytest.approx(0.5249, abs=5.01e-5),
        "log-margin-t020": pytest.approx(0.7780, abs=5.01e-5),
        "log-margin-t005": pytest.approx(1.1206, abs=5.01e-5),
    }
    inputs = json.loads(path.read_text())["inputs"]
    assert (inputs["window"], inputs["n0"], inputs["n1"]) == (8, 64, 512)
    again = tmp_path / "again.json"
    margin_stage(a_scale(64), again)
    assert again.read_bytes() == path.read_bytes()


def test_tolerances_are_those_of_the_arm_table():
    options = {key: dict(arm.log_prior.options) for key, arm in ARMS.items() if arm.log_prior is not None}
    assert {key: given["tolerance"] for key, given in options.items() if "tolerance" in given} == TOLERANCES


def test_read_margins_refuses_a_damaged_file(tmp_path):
    path = tmp_path / "margins.json"
    margin_stage(a_scale(64), path)
    whole = path.read_text()
    path.write_text(whole.replace("0.52", "0.53", 1))
    with pytest.raises(UserError, match=r"is damaged \(its digest differs\); rebuild it: snakemake"):
        read_margins(path)
    write_signed_json(path, {"margins": {"log-margin-t050": "wide"}})
    with pytest.raises(UserError, match="holds no margins"):
        read_margins(path)
    with pytest.raises(UserError, match="rebuild it: snakemake"):
        read_margins(tmp_path / "absent.json")


def test_theory_imports_no_torch():
    code = "import sys, causal_priors.theory.margin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
