"""The transport operator against operator.md: golden numbers, an independent root finder, its invariants, its refusals."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from causal_priors.attention.transport import (
    Decoder,
    DistanceLogPrior,
    choose,
    interface,
    newton,
    output_and_plan_rows,
    plan_rows,
    transport_attention,
)

STRENGTHS = (0.0, 0.05, 0.5, 0.8, 0.95, 0.99)
IMPLEMENTATIONS = ("reference", "blocked")


def plan_of(scores, strength, impl, **options):
    """Plan and potentials, through the public door: values that are the identity, scores as the log-prior."""
    batch, heads, length, _ = scores.shape
    zeros = torch.zeros(batch, heads, length, 1, dtype=scores.dtype)
    eye = torch.eye(length, dtype=scores.dtype).expand(batch, heads, length, length)
    return transport_attention(
        zeros, zeros, eye, log_prior=scores, strength=strength, impl=impl, return_potentials=True, **options
    )


def random_tensors(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(3)]


GOLDEN_HALF = [
    [1],
    [0.352201, 0.647799],
    [0.193746, 0.305879, 0.500376],
    [0.127832, 0.188977, 0.266574, 0.416617],
    [0.093092, 0.132515, 0.175623, 0.237097, 0.361673],
]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_golden_plan_of_equal_scores(impl):
    plan, a = plan_of(torch.zeros(1, 1, 5, 5, dtype=torch.float64), 0.5, impl)
    for row, expected in enumerate(GOLDEN_HALF):
        np.testing.assert_allclose(plan[0, 0, row, : row + 1], expected, atol=6e-7)
    np.testing.assert_allclose(a[0, 0], [0, -0.868350, -1.384792, -1.751177, -2.034031], atol=6e-7)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_golden_last_rows(impl):
    plan, a = plan_of(torch.zeros(1, 1, 5, 5, dtype=torch.float64), 0.9, impl)
    np.testing.assert_allclose(plan[0, 0, -1], [0.008576, 0.034434, 0.093675, 0.228412, 0.634904], atol=6e-7)
    assert float(a[0, 0, -1]) == pytest.approx(-4.542810, abs=6e-7)
    i = torch.arange(5.0, dtype=torch.float64)[:, None]
    waves = 0.3 * torch.sin(3 * i + 2 * i.T) + 0.5 * torch.cos(i - 2 * i.T)
    plan, a = plan_of(waves[None, None], 0.5, impl)
    np.testing.assert_allclose(plan[0, 0, -1], [0.059907, 0.137077, 0.260915, 0.187643, 0.354458], atol=6e-7)
    np.testing.assert_allclose(a[0, 0], [-0.5, -1.017861, -1.585812, -1.790761, -2.021390], atol=6e-7)


def row_excess(a, kernel, before, strength):
    """Row sum minus one at potential a."""
    return np.sum(np.exp(a) * kernel * (before + np.exp(a) * kernel) ** -strength) - 1


def by_root_finder(scores, strength):
    """The row equation in plain numbers, solved by Brent's method: shares nothing with the package."""
    length = len(scores)
    received, plan = np.zeros(length), np.zeros((length, length))
    for i in range(length):
        kernel, before = np.exp(scores[i, : i + 1]), received[: i + 1].copy()
        a = brentq(row_excess, -60, 20, args=(kernel, before, strength), xtol=1e-14, rtol=1e-14)
        received[: i + 1] += np.exp(a) * kernel
        plan[i, : i + 1] = np.exp(a) * kernel * received[: i + 1] ** -strength
    return plan


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_independent_root_finder(strength, impl):
    scores = torch.randn(1, 1, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    plan, _ = plan_of(scores, strength, impl)
    np.testing.assert_allclose(plan[0, 0], by_root_finder(scores[0, 0].numpy(), strength), atol=1e-11)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_invariants(strength, impl):
    scores = 2 * torch.randn(2, 2, 70, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plan, a = plan_of(scores, strength, impl)
    assert torch.allclose(plan.sum(-1), torch.ones(2, 2, 70, dtype=torch.float64), atol=1e-12)
    assert not plan.triu(1).any()
    # A constant on a row is absorbed by its potential; a constant on a column is not.
    row = torch.linspace(-5, 5, 70, dtype=torch.float64)[:, None]
    moved, moved_a = plan_of(scores + row, strength, impl)
    assert torch.allclose(moved, plan, atol=1e-10)
    assert torch.allclose(moved_a + row[:, 0], a, atol=1e-10)
    column = torch.zeros(70, dtype=torch.float64)
    column[3] = 1
    assert (plan_of(scores + column, strength, impl)[0] - plan).abs().max() > 1e-3


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_strength_zero_is_softmax(impl):
    q, k, v = random_tensors(2, 3, 45, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(transport_attention(q, k, v, strength=0.0, impl=impl), expected, atol=1e-13)


def test_towards_strength_one_the_plan_becomes_the_identity():
    off = []
    for strength in (0.9, 0.99, 0.999):
        plan, _ = plan_of(torch.zeros(1, 1, 12, 12, dtype=torch.float64), strength, "blocked")
        off.append(1 - float(plan[0, 0].diagonal().min()))
    assert off[0] > off[1] > off[2]
    assert off[2] < 0.05


def test_constant_scores_follow_the_scale_invariant_law():
    # i P[i,j] -> ln(i/j) ** -strength / gamma(1 - strength)
    length, strength = 2048, 0.5
    zeros = torch.zeros(1, 1, length, 1, dtype=torch.float64)
    row = plan_rows(zeros, zeros, None, strength, torch.tensor([length - 1]))[0, 0, 0]
    j = torch.tensor([length // 4, length // 2])
    law = torch.log(length / (j.double() + 0.5)) ** -strength / math.gamma(1 - strength)
    assert torch.allclose(length * row[j], law, rtol=0.03)


@pytest.mark.parametrize("strength", [0.5, 0.95])
def test_prefix_consistency(strength):
    q, k, v = random_tensors(1, 2, 80, 8)
    whole = transport_attention(q, k, v, strength=strength)
    for length in (1, 31, 33, 64):
        part = transport_attention(q[:, :, :length], k[:, :, :length], v[:, :, :length], strength=strength)
        assert torch.allclose(part, whole[:, :, :length], atol=1e-12)


@pytest.mark.parametrize("kind", ["log", "linear", "tensor", None])
def test_decoding_equals_the_full_forward(kind):
    q, k, v = random_tensors(2, 2, 50, 8, dtype=torch.float32)
    prior = torch.randn(2, 50, 50, generator=torch.Generator().manual_seed(2)) if kind == "tensor" else None
    if kind in ("log", "linear"):
        prior = DistanceLogPrior(kind, torch.tensor([0.5, 1.25]))
    whole = transport_attention(q, k, v, log_prior=prior, strength=0.8)
    decoder = Decoder(strength=0.8, log_prior=prior)
    part = prior[..., :20, :20] if kind == "tensor" else prior
    decoder.log_prior = part
    outputs = [decoder.prefill(q[:, :, :20], k[:, :, :20], v[:, :, :20])]
    decoder.log_prior = prior
    for i in range(20, 50):
        outputs.append(decoder.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]))
    assert len(decoder) == 50
    assert torch.allclose(torch.cat(outputs, 2), whole, atol=3e-6)


def test_decoding_from_nothing_equals_decoding_after_a_prompt():
    q, k, v = random_tensors(1, 2, 9, 8)
    decoder = Decoder(strength=0.6)
    steps = [decoder.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(9)]
    assert torch.allclose(torch.cat(steps, 2), transport_attention(q, k, v, strength=0.6), atol=1e-12)
    with pytest.raises(ValueError, match="prompt comes first"):
        decoder.prefill(q, k, v)


def test_plan_rows_are_rows_of_the_plan():
    q, k, v = random_tensors(2, 2, 70, 8)
    rows = torch.tensor([69, 0, 31, 32, 5])
    prior = DistanceLogPrior("log", torch.tensor([0.5, 1.5], dtype=torch.float64))
    plan = plan_rows(q, k, prior, 0.7, rows)
    out = transport_attention(q, k, v, log_prior=prior, strength=0.7, impl="reference")
    assert plan.shape == (2, 2, 5, 70)
    assert torch.allclose(plan @ v, out[:, :, rows], atol=1e-11)


def test_sweeps_approach_the_exact_plan_by_the_strength_each():
    # Measured in operator.md: .52, .25, .12 for one, two and three sweeps at strength .5.
    scores = 1.5 * torch.randn(1, 1, 128, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    _, exact = plan_of(scores, 0.5, "reference")
    errors = []
    for iterations in (1, 2, 3, 4, 5, 6):
        _, a = plan_of(scores, 0.5, "reference", solver="sweeps", iterations=iterations)
        errors.append(float((a - exact).abs().max()))
    ratios = np.array(errors[1:]) / np.array(errors[:-1])
    assert errors[0] < 1
    assert np.all(ratios < 0.5)
    assert np.all(ratios > 0.3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"strength": 1.0}, "identity"),
        ({"strength": 1.5}, "identity"),
        ({"strength": -0.1}, "negative"),
        ({"strength": float("nan")}, "NaN"),
        ({"solver": "newton"}, "solver = 'newton'"),
        ({"impl": "fast"}, "impl = 'fast'"),
        ({"solver": "sweeps"}, "sweeps need a number"),
        ({"iterations": 3}, "exact takes none"),
        ({"solver": "sweeps", "iterations": 0}, "at least one"),
        ({"solver": "sweeps", "iterations": 2, "impl": "blocked"}, "no sweeps"),
        ({"impl": "triton", "log_prior": torch.zeros(6, 6)}, "fuse log-priors of distance alone"),
        ({"log_prior": torch.zeros(5, 5)}, "must broadcast"),
        ({"log_prior": DistanceLogPrior("log", torch.zeros(3))}, r"must be \[H\]"),
        ({"q": torch.zeros(2, 6, 16)}, r"must be \[B, H, T, D\]"),
        ({"k": torch.zeros(1, 2, 5, 16)}, "must agree"),
        ({"v": torch.zeros(1, 2, 5, 16)}, "must agree"),
        ({"v": torch.zeros(1, 2, 6, 16, dtype=torch.float64)}, "one dtype"),
        ({"q": torch.zeros(1, 2, 6, 16, dtype=torch.float16)}, "float16"),
    ],
)
def test_refusals_name_the_reason(change, reason):
    zeros = torch.zeros(1, 2, 6, 16)
    arguments = {"q": zeros, "k": zeros, "v": zeros, "strength": 0.5} | change
    tensors = [arguments.pop(name) for name in ("q", "k", "v")]
    with pytest.raises((ValueError, TypeError), match=reason):
        transport_attention(*tensors, **arguments)


def test_unknown_distance_kind_is_refused():
    with pytest.raises(ValueError, match="unknown distance prior"):
        DistanceLogPrior("power", torch.ones(2))


def test_auto_reports_its_choice(caplog):
    q, k, v = random_tensors(1, 1, 4, 8, dtype=torch.float32)
    assert choose(q, v, None).name == "blocked"
    assert choose(q, v, None, "sweeps").name == "reference"
    interface._report.cache_clear()
    with caplog.at_level("INFO", logger=interface.__name__):
        transport_attention(q, k, v, strength=0.5)
        transport_attention(q, k, v, strength=0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "transport attention: impl=auto takes blocked (no GPU tensor)"
    ]


def test_bfloat16_is_computed_in_float32():
    q, k, v = random_tensors(1, 2, 40, 16, dtype=torch.bfloat16)
    out = transport_attention(q, k, v, strength=0.7)
    expected = transport_attention(q.float(), k.float(), v.float(), strength=0.7)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected.to(torch.bfloat16))


def test_the_readme_example_runs_with_nothing_of_the_project(tmp_path):
    # The package is meant to be copied out: a copy under another name, with nothing beside it, runs its README's example.
    source = Path(interface.__file__).parent
    shutil.copytree(source, tmp_path / "transport")
    example = (source / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert len(example.strip().splitlines()) == 6
    example = example.replace("causal_priors.attention.transport", "transport")
    program = "import sys\nsys.modules['causal_priors'] = None\n" + example + "print(prior.coefficient_H.grad.shape)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.stdout.strip() == "torch.Size([8])", done.stderr


def test_output_beside_plan_rows_is_the_output():
    """One solution for both: the output equals the operator's, and the rows asked for make the rows of it."""
    q, k, v = random_tensors(2, 3, 45, 8)
    prior = DistanceLogPrior("log", torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    rows = torch.arange(30, 45)
    out, plan = output_and_plan_rows(q, k, v, prior, 0.75, rows)
    whole = transport_attention(q, k, v, log_prior=prior, strength=0.75, impl="reference")
    torch.testing.assert_close(out, whole, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(plan @ v, whole[:, :, 30:], rtol=1e-9, atol=1e-11)


def test_a_block_whose_steps_cycle_is_soon_given_up(monkeypatch):
    # Two symbols, each like itself alone: column sums too wide for float32, whose steps then cycle around the solution.
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(2, (1, 1, 256), generator=generator)
    x_BHTD = (torch.randn(2, 8, generator=generator) * 14**0.5)[symbols]
    steps = []
    power = newton.power
    monkeypatch.setattr(newton, "power", lambda *args: (steps.append(args[0].dtype), power(*args))[1])
    plan = plan_rows(x_BHTD, x_BHTD, None, 0.9, torch.arange(256))
    assert torch.allclose(plan.sum(-1), torch.ones(1, 1, 256))
    assert set(steps) == {torch.float32, torch.float64}
    assert len(steps) < newton.MOST_STEPS
