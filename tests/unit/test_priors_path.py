"""Forget gates and CABLE against arms.md B.5 and B.6: golden numbers, reductions, accuracy, the interface."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_cases import alibi_bias, bias, doubled, make, past, shaken, softmax_rows, window
from torch.testing import assert_close

from causal_priors.arms import ARMS
from causal_priors.priors.base import Geometry
from causal_priors.priors.formulas import alibi_slopes
from causal_priors.priors.path import Cable, ForgetGate

GATES = [ForgetGate, Cable]


def forget(log_odds):
    """One head whose gate logits are the given numbers."""
    prior = make(ForgetGate, width=1, heads=1)
    with torch.no_grad():
        prior.weight_GC.fill_(1.0)
    x = torch.tensor(log_odds, dtype=torch.float64).reshape(1, -1, 1)
    return prior.double(), (x, None, None)


def cable(costs, slopes):
    """One head whose pre-activations are the given numbers."""
    prior = make(Cable, width=2, heads=1)
    with torch.no_grad():
        prior.weight_GC.copy_(torch.eye(2))
    x = torch.tensor([costs, slopes], dtype=torch.float64).T[None]
    return prior.double(), (x, None, None)


def inverse_softplus(value):
    return math.log(math.expm1(value))


def test_forget_gate_golden():
    gates = (0.9, 0.5, 0.25, 0.8)
    prior, inputs = forget([math.log(f / (1 - f)) for f in gates])
    found = bias(prior, inputs)[0, 0]
    rows = [[0.0], [-0.693147, 0], [-2.079442, -1.386294, 0], [-2.302585, -1.609438, -0.223144, 0]]
    for i, row in enumerate(rows):
        assert found[i, : i + 1].tolist() == pytest.approx(row, abs=5e-7)
    weights = softmax_rows(found)
    expected = [[1], [1 / 3, 2 / 3], [1 / 11, 2 / 11, 8 / 11], [1 / 21, 2 / 21, 8 / 21, 10 / 21]]
    for i, row in enumerate(expected):
        assert weights[i, : i + 1].tolist() == pytest.approx(row, rel=1e-12)


@pytest.mark.parametrize(("m", "logit"), [(0.5, 0.432752), (0.0625, 2.741176), (2**-8, 5.543224)])
def test_constant_forget_gates_are_alibi(m, logit):
    assert -math.log(math.expm1(m)) == pytest.approx(logit, abs=5e-7)
    prior, inputs = forget([-math.log(math.expm1(m))] * 9)
    assert_close(past(bias(prior, inputs)[0]), alibi_bias([m], 9), rtol=1e-12, atol=1e-13)


def test_alibi_rows_of_constant_gates_are_the_golden_row():
    prior, inputs = forget([0.43275212956718856] * 4)
    row = softmax_rows(bias(prior, inputs)[0, 0])[3]
    assert row.tolist() == pytest.approx([0.101536, 0.167405, 0.276004, 0.455054], abs=5e-7)


def test_open_forget_gates_are_no_position_at_all():
    prior, inputs = forget([800.0] * 7)
    assert torch.equal(past(bias(prior, inputs)), torch.zeros(1, 1, 7, 7, dtype=torch.float64))


@pytest.mark.parametrize("m", [0.25, 2**-8])
def test_cable_with_unit_costs_is_alibi(m):
    prior, inputs = cable([1.0] * 9, [inverse_softplus(m)] * 9)
    assert_close(past(bias(prior, inputs)[0]), alibi_bias([m], 9), rtol=1e-12, atol=1e-13)


def test_cable_without_costs_is_no_position_at_all():
    prior, inputs = cable([-3.0] * 7, [0.3] * 7)
    assert not past(bias(prior, inputs)).any()


def test_cable_sums_costs_and_scales_by_the_query():
    costs, slopes = [0.5, -1.0, 2.0, 0.25, 3.0], [0.1, -0.4, 1.3, 2.0, -2.0]
    prior, inputs = cable(costs, slopes)
    found = bias(prior, inputs)[0, 0].detach()
    for i in range(5):
        for j in range(i + 1):
            path = sum(max(costs[t], 0.0) for t in range(j + 1, i + 1))
            assert float(found[i, j]) == pytest.approx(-math.log1p(math.exp(slopes[i])) * path, rel=1e-12, abs=1e-15)


def test_cable_with_gate_costs_is_the_forget_gate():
    logits = torch.randn(6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    forgetting, forget_inputs = forget(logits.tolist())
    costs = torch.nn.functional.softplus(-logits)
    path, path_inputs = cable(costs.tolist(), [inverse_softplus(1.0)] * 6)
    assert_close(past(bias(path, path_inputs)), past(bias(forgetting, forget_inputs)), rtol=1e-12, atol=1e-13)


def test_first_cost_is_never_used_and_a_cost_touches_only_the_pairs_across_it():
    for cls in GATES:
        prior = shaken(make(cls)).double()
        x, q, k = window(prior, 8, dtype=torch.float64)
        before = bias(prior, (x, q, k))
        for t in (0, 3):
            changed = x.clone()
            changed[:, t] += 0.7
            moved = past(bias(prior, (changed, q, k)) - before).abs() > 1e-12
            i, j = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
            crossing = (j < t) & (t <= i)
            own_row = (i == t) if cls is Cable else torch.zeros_like(crossing)
            assert not moved[..., ~(crossing | own_row)].any()
            assert moved.any() == (t > 0)


def test_forget_gate_adds_up_along_a_path_and_cable_does_not():
    def additive(cls):
        prior = shaken(make(cls)).double()
        b = bias(prior, window(prior, 9, dtype=torch.float64))
        return torch.allclose(b[..., 8, 2], b[..., 8, 5] + b[..., 5, 2], rtol=0, atol=1e-12)

    assert additive(ForgetGate)
    assert not additive(Cable)


@pytest.mark.parametrize("cls", GATES)
def test_biases_are_never_positive_and_rise_towards_the_query(cls):
    assert cls.non_increasing
    prior = shaken(make(cls)).double()
    b = bias(prior, window(prior, 17, dtype=torch.float64))
    for i in range(17):
        steps = b[..., i, 1 : i + 1] - b[..., i, :i]
        assert (steps >= -1e-12).all()
        assert not b[..., i, i].any()


@pytest.mark.parametrize("cls", GATES)
def test_two_extra_channels_of_q_and_k_hold_the_bias(cls):
    prior = shaken(make(cls)).double()
    inputs = window(prior, 11, dtype=torch.float64)
    q, k = inputs[1], inputs[2]
    state = prior.tokens(*inputs)
    if cls is ForgetGate:
        extra_q, extra_k = torch.ones_like(state.high_BHT), -state.high_BHT
    else:
        extra_q, extra_k = -state[1], state[0].high_BHT
    width = q.shape[-1]
    long_q = torch.cat((q / width**0.5, extra_q[..., None]), -1) * (width + 1) ** 0.5
    long_k = torch.cat((k, extra_k[..., None]), -1)
    identity = torch.eye(11, dtype=torch.float64).expand(2, 4, 11, 11)
    augmented = torch.nn.functional.scaled_dot_product_attention(long_q, long_k, identity, is_causal=True)
    direct = softmax_rows(q @ k.mT / width**0.5 + bias(prior, inputs))
    assert_close(augmented, direct, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cls", GATES)
def test_prepending_masked_tokens_changes_nothing(cls):
    prior = shaken(make(cls)).double()
    inputs = window(prior, 12, dtype=torch.float64)
    late = tuple(t[:, 5:] if n == 0 else t[:, :, 5:] for n, t in enumerate(inputs))
    assert_close(past(bias(prior, inputs)[..., 5:, 5:]), past(bias(prior, late)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cls", GATES)
def test_blocks_of_rows_and_columns_equal_the_whole(cls):
    prior = shaken(make(cls))
    inputs = window(prior, 23)
    whole = bias(prior, inputs)
    for rows, columns in (
        (range(7, 15), range(15)),
        ([22], range(23)),
        (range(23), range(3, 9)),
        ([20, 4, 11], [0, 0, 5]),
    ):
        block = bias(prior, inputs, list(rows), list(columns))
        assert torch.equal(block, whole[..., list(rows), :][..., list(columns)])


@pytest.mark.parametrize("cls", GATES)
def test_cached_decoding_equals_the_window(cls):
    prior = shaken(make(cls)).double()
    inputs = window(prior, 10, dtype=torch.float64)
    whole = bias(prior, inputs)
    for length in range(1, 11):
        prefix = tuple(t[:, :length] if n == 0 else t[:, :, :length] for n, t in enumerate(inputs))
        step = bias(prior, prefix, [length - 1])
        assert_close(step, whole[..., length - 1 : length, :length], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("cls", GATES)
def test_gradient_is_the_finite_difference_and_reaches_every_parameter(cls):
    prior = shaken(make(cls, width=5, heads=2)).double()
    inputs = window(prior, 7, dtype=torch.float64, gradient=True)
    names, parameters = zip(*prior.named_parameters(), strict=True)

    def loss(x, *values):
        state = {f"prior.{name}": value for name, value in zip(names, values, strict=True)}
        return past(torch.func.functional_call(_Biases(prior), state, ((x, *inputs[1:]),)))

    assert torch.autograd.gradcheck(loss, (inputs[0], *parameters))
    past(bias(prior, inputs)).square().sum().backward()
    assert all(parameter.grad.abs().min() > 0 for parameter in parameters)


class _Biases(torch.nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.prior = prior

    def forward(self, inputs):
        return bias(self.prior, inputs)


@pytest.mark.parametrize("cls", GATES)
def test_float32_gradient_agrees_with_float64(cls):
    prior = shaken(make(cls))
    gradients = []
    for module, dtype in ((prior, torch.float32), (doubled(prior), torch.float64)):
        inputs = window(module, 33, dtype=dtype, gradient=True)
        softmax_rows(bias(module, inputs)).square().sum().backward()
        gradients.append([inputs[0].grad.double()] + [p.grad.double() for p in module.parameters()])
    for low, high in zip(*gradients, strict=True):
        assert float((low - high).norm() / high.norm()) < 1e-5


def reference_pair_sums(cost_HT, i):
    """Costs after each key up to row i, added in float32 from the query backwards, as a person would."""
    sums = np.zeros((cost_HT.shape[0], i + 1), dtype=np.float32)
    running = np.zeros(cost_HT.shape[0], dtype=np.float32)
    for j in range(i - 1, -1, -1):
        running = running + cost_HT[:, j + 1]
        sums[:, j] = running
    return sums


@pytest.mark.parametrize("drift", ["even", "late-calm"])
@pytest.mark.parametrize("cls", GATES)
def test_long_windows_err_at_most_twice_what_summing_each_path_does(cls, drift):
    length, rows = 4096, [100, 2049, 4095]
    prior = make(cls, heads=2, width=6)
    x, q, k = window(prior, length, batch=1)
    if drift == "late-calm":
        # Costly early tokens, then nearly free ones: what a float32 running sum cannot hold.
        x[:, :2000] *= 40
        x[:, 2000:] *= 0.01
    exact_prior = doubled(prior)
    exact = bias(exact_prior, tuple(t.double() for t in (x, q, k)), rows)[0].detach().numpy()
    ours = bias(prior, (x, q, k), rows)[0].detach().numpy()
    gates = prior.gates(x)[0].detach()
    if cls is ForgetGate:
        cost, scale = torch.nn.functional.logsigmoid(gates).numpy(), np.ones((2, length), np.float32)
    else:
        cost, scale = torch.relu(gates[:2]).numpy(), -torch.nn.functional.softplus(gates[2:]).numpy()
    # Near pairs by themselves, since the far ones (thousands of nats away, weight 0) have the largest errors.
    for near in (16, 256, length):
        ours_error = plain_error = 0.0
        for n, i in enumerate(rows):
            seen = slice(max(i + 1 - near, 0), i + 1)
            plain = reference_pair_sums(cost, i) * scale[:, i : i + 1]
            plain_error = max(plain_error, np.abs(plain[:, seen] - exact[:, n, seen]).max())
            ours_error = max(ours_error, np.abs(ours[:, n, seen] - exact[:, n, seen]).max())
        assert ours_error <= 2 * plain_error


@settings(max_examples=40, deadline=None)
@given(
    cls=st.sampled_from(GATES),
    length=st.integers(1, 37),
    heads=st.integers(1, 5),
    magnitude=st.sampled_from([0.0, 1e-6, 1.0, 50.0, 1e4]),
    push=st.sampled_from([-1e4, -30.0, 0.0, 30.0, 1e4]),
)
def test_extreme_gates_keep_rows_whole(cls, length, heads, magnitude, push):
    prior = make(cls, heads=heads, width=heads * 2)
    x, q, k = window(prior, length)
    with torch.no_grad():
        prior.bias_G.fill_(push)
        b = bias(prior, (x * magnitude, q, k))
    assert torch.isfinite(b).all()
    weights = softmax_rows(b)
    assert_close(weights.sum(-1), torch.ones(2, heads, length))
    assert not weights.triu(1).any()


@pytest.mark.parametrize(("cls", "count"), [(ForgetGate, 9228), (Cable, 18456)])
def test_parameter_counts_at_width_768(cls, count):
    prior = cls(Geometry(768, 12, 64, 1024), torch.Generator().manual_seed(0))
    assert sum(parameter.numel() for parameter in prior.parameters()) == count


@pytest.mark.parametrize("cls", GATES)
def test_initial_values_come_from_the_given_stream_alone(cls):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    prior = make(cls, width=768, heads=12, head_dim=64, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(prior.weight_GC, make(cls, width=768, heads=12, head_dim=64, seed=3).weight_GC)
    assert not prior.bias_G.any()
    assert float(prior.weight_GC.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_initial_costs_are_those_of_the_sources():
    """B.5, B.6: mean log gate -.73 and mean CABLE slope .153 a token at width 768."""
    fox = make(ForgetGate, width=768, heads=12, head_dim=64)
    inputs = window(fox, 400)
    assert float(bias(fox, inputs, [399], [0]).detach().mean() / 399) == pytest.approx(-0.73, abs=0.02)
    path = make(Cable, width=768, heads=12, head_dim=64)
    slopes = bias(path, inputs, list(range(300, 400)), [0])[..., 0] / torch.arange(300, 400)
    assert float(slopes.detach().mean()) == pytest.approx(-0.153, abs=0.015)


def test_reported_slopes_are_the_costs_at_zero_input():
    fox, path = make(ForgetGate), make(Cable)
    assert fox.parameters_report()["slope"] == pytest.approx([math.log(2)] * 4)
    assert path.parameters_report()["slope"] == [0.0] * 4
    with torch.no_grad():
        path.bias_G.fill_(1.0)
    zeros = (torch.zeros(1, 2, 12), None, None)
    assert path.parameters_report()["slope"] == pytest.approx((-bias(path, zeros)[0, :, 1, 0]).tolist())
    assert fox.summable() is None
    assert path.summable() is None


def test_arm_rows_have_no_rotation():
    for key, cls in (("fox", ForgetGate), ("cable", Cable), ("cable-lr", Cable)):
        arm = ARMS[key]
        assert arm.rotation is None
        assert arm.transport is None
        assert arm.log_prior.load() is cls
        assert arm.position_lr == (1.0 if key == "cable-lr" else 1 / 3)
    assert ARMS["cable"].log_prior == ARMS["cable-lr"].log_prior
    assert alibi_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625]
