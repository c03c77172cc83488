"""Log-priors of distance against golden numbers (B.3, B.4), limits, and the formulas in NumPy."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from prior_cases import alibi_bias, doubled, make, past, shaken, softmax_rows

from causal_priors.errors import UserError
from causal_priors.priors.base import BoundPrior, PriorContext
from causal_priors.priors.distance import ALiBi, Kerple, LogDistance
from causal_priors.priors.formulas import FORMULAS, KERPLE, LINEAR, LOG, alibi_slopes

LENGTH = 24
CASES = {
    "free": lambda: make(LogDistance, exponents="free"),
    "fixed": lambda: make(LogDistance, exponents="fixed"),
    "above-one": lambda: make(LogDistance, exponents="above-one"),
    "below-one": lambda: make(LogDistance, exponents="below-one"),
    "margin": lambda: make(LogDistance, exponents="margin", margin=0.25),
    "kerple": lambda: make(Kerple),
    "alibi": lambda: make(ALiBi),
}


def square(prior, length=LENGTH):
    every = torch.arange(length)
    return prior(PriorContext(every, every))


def with_values(prior, **values):
    """Set effective values of softplus parameters."""
    with torch.no_grad():
        for name, value in values.items():
            value = torch.tensor(value, dtype=torch.float64)
            getattr(prior, name).copy_(value + (-torch.expm1(-value)).log())
    return prior


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (4, [0.25, 0.0625, 0.015625, 0.00390625]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [2.0**-h for h in range(1, 9)]),
        (12, [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
        (16, [2 ** (-h / 2) for h in range(1, 17)]),
        (1, [2.0**-8]),
    ],
)
def test_alibi_slopes(heads, expected):
    assert alibi_slopes(heads) == pytest.approx(expected, rel=1e-12)


def test_golden_alibi_row():
    prior = make(ALiBi, heads=1)
    prior.slope_H.fill_(0.5)
    row = softmax_rows(square(prior, 4))[0, 0, 3]
    assert row.tolist() == pytest.approx([0.101536, 0.167405, 0.276004, 0.455054], abs=5e-7)


def test_golden_kerple():
    prior = with_values(make(Kerple, heads=1).double(), power_raw_H=[1.5], rate_raw_H=[0.7])
    bias = square(prior, 5)[0, 0]
    assert bias[4].flip(0).tolist() == pytest.approx([0, -0.795942, -1.313203, -1.697103, -2.002502], abs=5e-7)
    row = softmax_rows(bias[:4, :4])[3]
    assert row.tolist() == pytest.approx([0.096260, 0.141309, 0.237035, 0.525396], abs=5e-7)


def test_kerple_tends_to_alibi():
    """Power p, rate a -> 0 with p a = m fixed: ln(1 + x) = x - x^2 / 2 + ..., so within m a d^2 / 2 of -m d."""
    slopes = [0.25, 0.0625, 0.015625, 0.00390625]
    rate = 1e-7
    prior = with_values(
        make(Kerple).double(), power_raw_H=[slope / rate for slope in slopes], rate_raw_H=[rate] * len(slopes)
    )
    expected = alibi_bias(slopes, LENGTH)
    torch.testing.assert_close(past(square(prior)[0]), past(expected), rtol=0, atol=0.125 * LENGTH**2 * rate)


def test_kerple_with_rate_one_is_log_distance():
    exponents = [0.5, 0.9, 1.1, 2.0]
    kerple = with_values(make(Kerple).double(), power_raw_H=exponents, rate_raw_H=[1.0] * 4)
    log = with_values(make(LogDistance).double(), theta_H=exponents)
    torch.testing.assert_close(square(kerple), square(log), rtol=1e-12, atol=1e-12)


def test_vanishing_exponents_and_slopes_are_no_prior():
    log = make(LogDistance)
    with torch.no_grad():
        log.theta_H.fill_(-200.0)
    alibi = make(ALiBi)
    alibi.slope_H.zero_()
    for prior in (log, alibi):
        assert square(prior).abs().max() == 0


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("free", [0.5, 0.721125, 1.040042, 1.5]),
        ("fixed", [0.7, 0.788374, 0.887904, 1.0]),
        ("above-one", [1.5] * 4),
        ("below-one", [0.7] * 4),
        ("margin", [1.75] * 4),
    ],
)
def test_initial_exponents(case, expected):
    """A14, A16: log-spaced over heads means equal ratios; (1.5 / .5)^(1/3) = 1.442250."""
    report = CASES[case]().parameters_report()
    assert report["exponent"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("case", "low", "high"), [("free", 0, 90), ("above-one", 1, 90), ("below-one", 0, 1), ("margin", 1.25, 90)]
)
def test_exponents_stay_on_their_side_of_one(case, low, high):
    prior = CASES[case]()
    for value in (-60.0, 60.0):
        with torch.no_grad():
            prior.theta_H.fill_(value)
        assert all(low <= alpha <= high for alpha in prior.parameters_report()["exponent"])


def test_fixed_exponents_and_alibi_own_no_parameters():
    assert not list(CASES["fixed"]().parameters())
    assert not list(CASES["alibi"]().parameters())
    assert not CASES["fixed"]().state_dict()
    assert not CASES["alibi"]().state_dict()


def test_kerple_draws_from_its_generator_within_the_source_ranges():
    first, again, other = make(Kerple, heads=64), make(Kerple, heads=64), make(Kerple, heads=64, seed=1)
    assert first.parameters_report() == again.parameters_report() != other.parameters_report()
    report = first.parameters_report()
    for name, top in (("exponent", 2.0), ("rate", 1.0)):
        values = np.array(report[name])
        assert 0.0099 <= values.min() < 0.2 * top
        assert 0.8 * top < values.max() <= top * 1.0001


@pytest.mark.parametrize("case", CASES)
def test_zero_on_the_diagonal_and_never_rising(case):
    rows = past(square(shaken(CASES[case]()))[0])
    assert rows.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    assert (rows[:, -1].diff() >= 0).all()


@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_the_whole_bit_for_bit(case):
    prior = CASES[case]()
    whole = square(prior)
    i, j = torch.tensor([3, 7, 20, 21]), torch.tensor([0, 2, 3, 19])
    assert torch.equal(prior(PriorContext(i, j)), whole[:, :, i][..., j])


@pytest.mark.parametrize("case", CASES)
def test_shift_invariant(case):
    prior = CASES[case]()
    here, there = torch.arange(LENGTH), torch.arange(1000, 1000 + LENGTH)
    assert torch.equal(prior(PriorContext(here, here)), prior(PriorContext(there, there)))


@pytest.mark.parametrize("case", CASES)
def test_float32_is_as_good_as_float32_arithmetic_allows(case):
    """At 4096 tokens: the rounded parameters are the function; what is computed from them is off by few roundings."""
    prior = CASES[case]()
    wide = doubled(prior)
    i, j = torch.tensor([4095]), torch.arange(4096)
    exact = wide(PriorContext(i, j))
    # The plain float32 reference: the exact bias rounded once for each of its three operations.
    allowed = 2 * 3 * torch.finfo(torch.float32).eps / 2 * exact.abs()
    assert ((prior(PriorContext(i, j)).double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("case", ["free", "above-one", "below-one", "margin", "kerple"])
def test_gradient_of_parameters_by_finite_differences(case):
    prior = shaken(CASES[case]()).double()
    names = dict(prior.named_parameters())
    every = torch.arange(6)

    def forward(*values):
        return torch.func.functional_call(prior, dict(zip(names, values, strict=True)), (PriorContext(every, every),))

    assert torch.autograd.gradcheck(forward, tuple(p.detach().clone().requires_grad_() for p in names.values()))


@pytest.mark.parametrize("case", CASES)
def test_modules_compute_what_the_formulas_say_in_numpy(case):
    """The theory stage analyses the formulas; the modules must be them."""
    prior = shaken(CASES[case]()).double()
    report = {name: np.array(values)[:, None] for name, values in prior.parameters_report().items()}
    if case == "kerple":
        formula, parameters = KERPLE, {"power": report["exponent"], "rate": report["rate"]}
    elif case == "alibi":
        formula, parameters = LINEAR, report
    else:
        formula, parameters = LOG, report
    assert set(parameters) == set(formula.parameters)
    expected = formula.of_distance(np.arange(LENGTH, dtype=np.float64), parameters, np)
    assert square(prior)[0, :, -1].flip(-1).detach().numpy() == pytest.approx(expected, rel=1e-12)
    every_head = np.logical_and.reduce(formula.summable(parameters), axis=None)
    assert prior.summable() is bool(every_head)


@pytest.mark.parametrize(
    ("case", "summable"),
    [("free", False), ("fixed", False), ("above-one", True), ("below-one", False), ("margin", True), ("alibi", True)],
)
def test_summable_as_the_table_of_arms_says(case, summable):
    assert CASES[case]().summable() is summable


@pytest.mark.parametrize("case", ["free", "fixed", "margin", "alibi"])
def test_distance_form_is_the_bias(case):
    prior = CASES[case]()
    kind, coefficient = BoundPrior(prior).distance_form()
    distance = torch.arange(LENGTH, dtype=torch.float32)
    shape = {"log": distance.log1p(), "linear": distance}[kind]
    torch.testing.assert_close(square(prior)[0, :, -1].flip(-1), -coefficient[:, None] * shape)


def test_kerple_has_no_distance_form():
    assert BoundPrior(make(Kerple)).distance_form() is None


def test_unknown_kind_is_refused_by_name():
    with pytest.raises(UserError, match=r"exponents = 'fre'.*free, fixed"):
        make(LogDistance, exponents="fre")


def test_formulas_import_no_torch():
    code = "import sys, json, causal_priors.priors.formulas; print(json.dumps('torch' in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) is False
    assert set(FORMULAS) == {"log", "kerple", "linear"}
