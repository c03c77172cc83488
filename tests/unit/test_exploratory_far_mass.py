"""Far mass that position alone predicts: against the theory, loops, and models whose content is switched off."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from exploratory_cases import L, by_head, logged
from helpers import scale

from causal_priors.arms import ARMS, Transport
from causal_priors.evaluate import Table, measure
from causal_priors.exploratory.prior_mass import Bias, bias_of, far_mass, far_masses
from causal_priors.model import Transformer
from causal_priors.priors.formulas import KERPLE, LINEAR, LOG, alibi_slopes, initial_exponents
from causal_priors.runs import Run
from causal_priors.theory.linear_mass import linear_far_mass
from causal_priors.theory.window_mass import far_mass as power_far_mass

NANO = scale("nano")


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_predicted_far_mass_of_a_power_law_is_the_theorys(exponent):
    masses = far_mass(Bias(LOG, (("exponent", exponent),)), 0.0, 512, (8, 64))
    assert masses == pytest.approx([power_far_mass(exponent, 512, w) for w in (8, 64)], rel=1e-12)


def test_predicted_far_mass_of_the_source_lengths():
    """Golden numbers of the theory: fixed exponents, and transport of constant scores, at 512 and 4096."""
    biases = [Bias(LOG, (("exponent", value),)) for value in initial_exponents("fixed", 8)]
    for n, expected in ((512, 0.4141), (4096, 0.6301)):
        assert np.mean([far_mass(bias, 0.0, n, (64,))[0] for bias in biases]) == pytest.approx(expected, abs=5e-5)
    assert far_mass(Bias(None), 0.75, 512, (64,))[0] == pytest.approx(0.4044, abs=5e-5)


def test_predicted_far_mass_of_slopes_and_of_no_prior():
    assert far_mass(Bias(LINEAR, (("slope", 0.25),)), 0.0, 128, (8, 16)) == pytest.approx(
        [linear_far_mass(0.25, 128, w) for w in (8, 16)], rel=1e-12
    )
    # The last of n queries sees n keys, n - w of them far; the averages by hand.
    assert far_mass(Bias(None), 0.0, 4, (2, 4)) == pytest.approx(((1 / 3 + 2 / 4) / 2, 0))


def test_predicted_far_mass_of_kerple_and_of_transport_over_a_prior_by_loops():
    power, rate, n, w = 0.9, 0.4, 24, 6
    weight = [(1 + rate * d) ** -power for d in range(n)]
    rows = [sum(weight[w : i + 1]) / sum(weight[: i + 1]) for i in range(n - w, n)]
    given = (("power", power), ("rate", rate))
    assert far_mass(Bias(KERPLE, given), 0.0, n, (w,))[0] == pytest.approx(np.mean(rows), rel=1e-12)
    # A strength near zero is softmax.
    assert far_mass(Bias(KERPLE, given), 1e-9, n, (w,))[0] == pytest.approx(np.mean(rows), rel=1e-6)


@pytest.mark.parametrize(
    "key", ["nope", "rope-logn", "log", "log-norope", "log-logn", "kerple", "alibi", "ot-75", "alibi-ot"]
)
def test_a_model_without_content_has_the_predicted_far_mass(key):
    """Queries that are zero make content scores zero: what is measured then is position alone."""
    run = Run("S", key, 1, 0)
    model = Transformer(NANO.sizes["S"], NANO.vocabulary, ARMS[key], L, 0).double().eval()
    with torch.no_grad():
        for block in model.layers:
            block.qkv.weight.zero_()
    blocks = np.random.default_rng(0).integers(0, NANO.vocabulary, size=(2, 8 * L + 1))
    table = Table(run, NANO, "evaluate", "float64")
    found = measure(model, blocks, [L, 8 * L], L)
    parts = [pd.DataFrame(rows) for one in found.values() for rows in table.measured("plain", one)]
    report = pd.DataFrame(model.position_report(), columns=["layer", "head", "quantity", "value"])
    positions = report.assign(step=5, run=run.name(NANO))
    result = far_masses(pd.concat(parts), positions, ARMS, {})
    assert not result.absent
    assert len(result.rows) == 2 * 2 * model.layers[0].geometry.heads
    assert result.rows["measured"].max() > 0
    np.testing.assert_allclose(result.rows["measured"], result.rows["predicted"], rtol=0, atol=1e-12)


def test_far_mass_without_a_prediction_is_named_with_the_reason():
    arms = {**ARMS, "swept": dataclasses.replace(ARMS["ot-50"], key="swept", transport=Transport(0.5, "sweeps", 3))}
    frame = pd.concat([by_head(arm) for arm in ("fox", "mine", "swept", "log", "rope")])
    positions = logged({0: (1.0,)}, run="elsewhere")
    result = far_masses(frame, positions, arms, {"S-nope-L16-s0": "diverged at step 1"})
    assert set(result.rows["arm"]) == {"rope"}
    reasons = {item.item: item.reason for item in result.absent}
    assert reasons["arm fox"].startswith("its bias is computed from the tokens")
    assert reasons["S-mine-L16-s0"].startswith("is of an arm of one's own")
    assert reasons["arm swept"] == "its transport stops after some sweeps"
    assert reasons["S-log-L16-s0"] == "has no logged parameters"
    assert reasons["S-nope-L16-s0"] == "diverged at step 1"


def test_the_last_logged_parameters_predict():
    steps = logged({0: (0.5,), 300: (2.0,)})
    found = far_masses(by_head("log"), steps, ARMS, {}).rows.iloc[0]
    assert found["predicted"] == pytest.approx(power_far_mass(2.0, 128, 2), rel=1e-12)
    assert found["difference"] == pytest.approx(0.4 - found["predicted"])
    assert bias_of(ARMS["alibi"], {"slope": alibi_slopes(4)[0]}) == Bias(LINEAR, (("slope", 0.25),))
