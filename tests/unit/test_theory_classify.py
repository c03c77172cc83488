"""Which priors keep their far mass bounded: the column of the table of arms, the trained classes, and partial sums."""

import subprocess
import sys

import numpy as np
import pytest
from prior_cases import make

from causal_priors.arms import ARMS, Arm, Part
from causal_priors.errors import UserError
from causal_priors.priors.edits import EDITS
from causal_priors.priors.formulas import FORMULAS
from causal_priors.theory.classify import classify

# The column "bounded far mass?" of the table of arms.
TABLE = {
    "rope": "no",
    "rope-logn": "no",
    "log": "iff α > 1",
    "log-fixed": "no",
    "kerple": "iff p > 1",
    "alibi": "yes",
    "log-norope": "iff α > 1",
    "log-logn": "iff α > 1",
    "ot-50": "no",
    "ot-75": "no",
    "alibi-ot": "yes",
    "grape-m": "no",
    "grape-a": "while gates stay bounded away from 0",
    "grape-ap": "while path costs stay bounded away from 0",
    "fox": "while gates stay bounded away from 1",
    "cable": "while path costs stay bounded away from 0",
    "cable-lr": "while path costs stay bounded away from 0",
    "log-gt1": "yes",
    "log-lt1": "no",
    "log-margin-t050": "yes",
    "log-margin-t020": "yes",
    "log-margin-t005": "yes",
    "goat": "depends on data",
    "nope": "no",
}
ANSWER = {"yes": True, "no": False}
WITH_PRIOR = [key for key, arm in ARMS.items() if arm.log_prior is not None]


def prior_of(arm):
    options = {name: value for name, value in arm.log_prior.options.items() if name != "tolerance"}
    return make(arm.log_prior.load(), **options, **({"margin": 0.5} if "tolerance" in arm.log_prior.options else {}))


def test_the_column_of_the_table_of_arms():
    assert {key: classify(arm).text for key, arm in ARMS.items()} == TABLE
    assert {key: classify(arm).bounded for key, arm in ARMS.items()} == {k: ANSWER.get(v) for k, v in TABLE.items()}


@pytest.mark.parametrize("key", WITH_PRIOR)
def test_agrees_with_the_class_that_trains_plain_and_edited(key):
    prior = prior_of(ARMS[key])
    report = prior.parameters_report()
    assert classify(ARMS[key], None, report).bounded is prior.summable()
    for name, edit in EDITS.items():
        assert classify(ARMS[key], name, report).bounded is edit(prior, 16).summable()


def test_trained_parameters_decide_head_by_head():
    assert classify(ARMS["log"], None, {"exponent": [1.2, 1.01]}).bounded is True
    assert classify(ARMS["log"], None, {"exponent": [1.2, 1.0]}).text == "no"
    assert classify(ARMS["kerple"], None, {"exponent": [2.0], "rate": [0.1]}).bounded is True
    assert classify(ARMS["kerple"], None, {"exponent": [0.9], "rate": [9.0]}).bounded is False
    assert classify(ARMS["fox"], None, {"slope": [0.7]}).bounded is None


@pytest.mark.parametrize(
    ("name", "parameters", "bounded"),
    [
        ("log", {"exponent": 0.9}, False),
        ("log", {"exponent": 1.0}, False),
        ("log", {"exponent": 1.1}, True),
        ("kerple", {"power": 1.0, "rate": 0.1}, False),
        ("kerple", {"power": 1.1, "rate": 0.1}, True),
        ("linear", {"slope": 1e-4}, True),
        ("linear", {"slope": 0.0}, False),
    ],
)
def test_formulas_answer_as_partial_sums_do(name, parameters, bounded):
    """A sum converges if its stretches 2^k .. 2^(k+1) shrink by a fixed factor, and diverges if they do not shrink."""
    lag = np.arange(2**18, dtype=np.float64)
    sums = np.cumsum(np.exp(FORMULAS[name].of_distance(lag, parameters, np)))
    last, before = sums[2**18 - 1] - sums[2**17 - 1], sums[2**17 - 1] - sums[2**16 - 1]
    assert bool(last < 0.97 * before) is bounded
    assert bool(FORMULAS[name].summable({key: np.float64(value) for key, value in parameters.items()})) is bounded


def test_priors_of_ones_own_depend_on_data_even_repaired():
    own = Arm("mine", "mine", log_prior=Part("own_arms.mine:Mine"))
    assert (classify(own).text, classify(own, "cap").text) == ("depends on data", "no")
    assert classify(own, "repair").bounded is None


def test_edits_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="arm rope has no log-prior to cap"):
        classify(ARMS["rope"], "cap")
    with pytest.raises(UserError, match="known edits: cap, repair"):
        classify(ARMS["log"], "mend")


def test_needs_no_torch():
    code = "import sys, causal_priors.theory.stage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
