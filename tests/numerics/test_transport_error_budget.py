"""Error budget from data: against float64, at most twice the error of the definition evaluated in float32.

Truth is the reference in float64, itself checked against an independent root finder (test_transport_definition.py). Every
budget has one addition that no data can give: one rounding of the terms that are summed, for cases where the float32
reference is exact by luck (a dominant key gives 1 * v, a single key gives a gradient of zero). Uninitialised memory is
filled with NaN throughout.
"""

from functools import cache

import pytest
import torch

from causal_priors.attention.transport import transport_attention

STRENGTHS = (0.0, 0.05, 0.5, 0.8, 0.95, 0.99)
KINDS = ("random", "equal", "dominant key", "dominant pairs", "wide")
NAMES = ("out", "potentials", "dq", "dk", "dv", "dbias")
WIDTH, HEADS = 16, 3


@pytest.fixture(autouse=True)
def _nan_filled_memory():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.isnan(torch.empty(7)).all(), "this torch does not fill uninitialised memory"
    yield
    torch.use_deterministic_algorithms(False)


def problems(length):
    """q, k, v, log-prior and output gradient in float64, one batch entry for each of KINDS."""
    generator = torch.Generator().manual_seed(length)
    shape = (len(KINDS), HEADS, length, WIDTH)
    q, k, v, dout = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(4))
    noise = torch.randn(len(KINDS), HEADS, length, length, dtype=torch.float64, generator=generator)
    bias = torch.zeros_like(noise)
    q[1:] *= 0.01
    bias[0] = noise[0]
    bias[2] = noise[2]
    bias[2, ..., min(3, length - 1)] += 30
    bias[3] = noise[3]
    one_key = (torch.rand(HEADS, length, 1, generator=generator) * torch.arange(1, length + 1)[:, None]).long()
    bias[3].scatter_add_(-1, one_key, torch.full(one_key.shape, 40.0, dtype=torch.float64))
    bias[4] = 100 * torch.rand(HEADS, length, length, dtype=torch.float64, generator=generator) - 50
    return q, k, v, bias, dout


def evaluate(length, strength, impl, dtype):
    *inputs, dout = (x.to(dtype) for x in problems(length))
    inputs = [x.requires_grad_() for x in inputs]
    q, k, v, bias = inputs
    out, a = transport_attention(q, k, v, log_prior=bias, strength=strength, impl=impl, return_potentials=True)
    dq, dk, dv, dbias = torch.autograd.grad(out, inputs, dout)
    return dict(zip(NAMES, (x.detach().double() for x in (out, a, dq, dk, dv, dbias)), strict=True))


@cache
def truth_and_plain(length, strength):
    return [evaluate(length, strength, "reference", dtype) for dtype in (torch.float64, torch.float32)]


def roundings(length, strength):
    """Size of the terms behind each result, in float64: what one rounding each would amount to, times 1 / eps."""
    q, k, v, bias, dout = problems(length)
    eye = torch.eye(length, dtype=torch.float64).expand(len(KINDS), HEADS, length, length)
    plan = transport_attention(q, k, eye, log_prior=bias, strength=strength)
    pulls = plan * (dout.abs() @ v.abs().mT)
    scale = WIDTH**-0.5
    return {
        "out": plan @ v.abs(),
        "potentials": torch.ones(plan.shape[:3], dtype=torch.float64),
        "dq": pulls @ k.abs() * scale,
        "dk": pulls.mT @ q.abs() * scale,
        "dv": plan.mT @ dout.abs(),
        "dbias": pulls,
    }


def over_budget(found, length, strength):
    truth, plain = truth_and_plain(length, strength)
    terms = roundings(length, strength)
    epsilon = torch.finfo(torch.float32).eps
    complaints = []
    for name in NAMES:
        for index, kind in enumerate(KINDS):
            error, budget = (float((x[name][index] - truth[name][index]).norm()) for x in (found, plain))
            budget = 2 * budget + epsilon * float(terms[name][index].norm())
            if not error <= budget:
                complaints.append(f"{name}, {kind}: {error:.2e} > {budget:.2e}")
    return complaints


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("length", [1, 2, 31])
def test_budget_of_short_windows(length, strength):
    assert not over_budget(evaluate(length, strength, "blocked", torch.float32), length, strength)


def test_budget_at_257():
    assert not over_budget(evaluate(257, 0.5, "blocked", torch.float32), 257, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("length", [257, 1024])
def test_budget_of_long_windows(length, strength):
    assert not over_budget(evaluate(length, strength, "blocked", torch.float32), length, strength)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_blocked_in_float64_is_the_reference(strength):
    truth, _ = truth_and_plain(31, strength)
    found = evaluate(31, strength, "blocked", torch.float64)
    for name in NAMES:
        assert torch.allclose(found[name], truth[name], rtol=1e-9, atol=1e-10), name


def test_stress_stays_finite():
    # operator.md: strength .95, T = 1024, scores up to +-50.
    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros(1, 2, 1024, 1)
    bias = (100 * torch.rand(1, 2, 1024, 1024, generator=generator) - 50).requires_grad_()
    v = torch.randn(1, 2, 1024, 16, generator=generator)
    out, a = transport_attention(zeros, zeros, v, log_prior=bias, strength=0.95, return_potentials=True)
    (dbias,) = torch.autograd.grad(out.sum(), bias)
    assert torch.isfinite(out).all()
    assert torch.isfinite(a).all()
    assert torch.isfinite(dbias).all()


@pytest.mark.parametrize("strength", [0.5, 0.99])
def test_the_same_call_gives_the_same_bits(strength):
    first, second = (evaluate(31, strength, "blocked", torch.float32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in NAMES)
