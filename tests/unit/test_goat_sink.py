"""The theory of sinks: closed forms against explicit softmaxes, and the bound on what the other keys can move."""

import numpy as np
import pytest

from causal_priors.goat.sink import FACTORS, RANGE, computed, margin_table, needed_margin, sensitivity


@pytest.mark.parametrize("keys", [2, 17, 1000])
@pytest.mark.parametrize("margin", [-3.0, 0.0, 5.0])
def test_sensitivity_is_that_of_a_softmax(keys, margin):
    found = computed(margin, np.zeros((1, keys)))[0]
    assert np.isclose(found, sensitivity(margin, keys), rtol=1e-12)


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.99])
def test_the_needed_margin_gives_the_mass_at_any_length(mass):
    keys = np.array([2, 64, 1024, 10**9])
    assert np.allclose(1.0 - sensitivity(needed_margin(keys, mass), keys), mass, rtol=1e-12)
    # ... and grows like ln n.
    growth = needed_margin(10**9, mass) - needed_margin(10**6, mass)
    assert np.isclose(growth, np.log(1000), atol=1e-5)


def test_growth_like_ln_n_is_the_border():
    table = margin_table().set_index(["factor", "keys"])
    last = table.xs(2**20, level="keys")["sensitivity"]
    assert last[0.0] > 0.999999
    assert last[0.5] > 0.999
    assert np.isclose(last[1.0], 0.5, atol=1e-6)
    assert last[1.5] < 0.001
    assert (table.loc[0.5]["sensitivity"].diff().dropna() > 0).all()
    assert (table.loc[1.5]["sensitivity"].diff().dropna() < 0).all()


def test_every_computed_softmax_lies_within_the_bounds_and_the_worst_ones_touch_them():
    table = margin_table().dropna()
    assert set(table["factor"]) == set(FACTORS)
    assert (table["computed_low"] >= table["lowest"] - 1e-12).all()
    assert (table["computed_high"] <= table["highest"] + 1e-12).all()
    assert np.allclose(table["computed_low"], table["lowest"], rtol=1e-9)
    assert np.allclose(table["computed_high"], table["highest"], rtol=1e-9)
    assert RANGE > 0


def test_the_others_move_the_output_by_at_most_their_mass():
    generator = np.random.default_rng(0)
    for _ in range(200):
        logits, values = generator.normal(size=20) * 3, generator.normal(size=(20, 5))
        weights = np.exp(logits) / np.exp(logits).sum()
        moved = np.linalg.norm(weights @ values - values[0])
        assert moved <= (1 - weights[0]) * np.linalg.norm(values - values[0], axis=1).max() + 1e-12
