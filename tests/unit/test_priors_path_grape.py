"""GRAPE-A and GRAPE-AP in their code form against arms.md B.8 and B.9."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_cases import alibi_bias, bias, doubled, make, past, shaken, softmax_rows, window
from torch.testing import assert_close

from causal_priors.arms import ARMS
from causal_priors.priors.base import Geometry, PriorContext
from causal_priors.priors.formulas import alibi_slopes
from causal_priors.priors.grape import GrapeA, GrapeAP, turn_by_position
from causal_priors.priors.path import ForgetGate

PRIORS = [GrapeA, GrapeAP]


def softplus(value):
    return math.log1p(math.exp(value))


def path_integral(prior, x_TC):
    """The definition with loops, in float64: b[h, i, j] = sum over l of m_h ln sigmoid(p_i . rho_l(p_l / rms) / 8)."""
    x, weight = x_TC.double().numpy(), prior.weight_GC.detach().double().numpy()
    heads, length = prior.geometry.heads, len(x)
    slopes = alibi_slopes(heads)
    out = np.zeros((heads, length, length))
    for h in range(heads):
        p = x @ weight[8 * h : 8 * h + 8].T
        for i in range(length):
            for j in range(i - 1, -1, -1):
                turn = j + 1
                unit = p[turn] / math.sqrt((p[turn] ** 2).mean() + 2.0**-23)
                c, s = math.cos(turn), math.sin(turn)
                turned = np.concatenate([unit[:4] * c + unit[4:] * s, -unit[:4] * s + unit[4:] * c])
                out[h, i, j] = out[h, i, j + 1] - slopes[h] * softplus(-float(p[i] @ turned) / 8)
    return torch.from_numpy(out)


def test_key_gate_golden():
    # At four heads the first slope is the golden number's .25.
    prior = make(GrapeA, heads=4, head_dim=2).double()
    with torch.no_grad():
        prior.u_HD.copy_(torch.tensor([0.0, 1.0]))
    k = torch.zeros(1, 4, 3, 2, dtype=torch.float64)
    k[..., 0, :] = torch.tensor([0.5, -1.0])
    found = bias(prior, (torch.zeros(1, 3, 12), k, k)).detach()
    assert float(found[0, 0, 2, 0]) == pytest.approx(-0.200417, abs=5e-7)


def test_key_gate_direction_has_unit_length():
    prior = shaken(make(GrapeA)).double()
    inputs = window(prior, 9, dtype=torch.float64)
    before = bias(prior, inputs)
    with torch.no_grad():
        prior.u_HD.mul_(3.0)
    assert_close(bias(prior, inputs), before, rtol=1e-12, atol=0)


@pytest.mark.parametrize("heads", [4, 6])
def test_grape_a_without_a_direction_is_alibi(heads):
    prior = make(GrapeA, heads=heads).double()
    with torch.no_grad():
        prior.u_HD.zero_()
        prior.omega_H.fill_(math.log(math.expm1(1 / math.log(2))))
    assert float(prior.omega_H[0].detach()) == pytest.approx(1.173128, abs=5e-7)
    found = bias(prior, window(prior, 9, dtype=torch.float64))
    for item in found:
        assert_close(past(item), alibi_bias(alibi_slopes(heads), 9), rtol=1e-7, atol=0)


def test_grape_a_with_a_closed_slope_is_no_position_at_all():
    prior = make(GrapeA)
    with torch.no_grad():
        prior.omega_H.fill_(-200.0)
    assert not past(bias(prior, window(prior, 9))).any()


def test_grape_a_depends_on_the_lag_and_the_key_alone():
    prior = shaken(make(GrapeA)).double()
    x, q, k = window(prior, 12, dtype=torch.float64)
    found = bias(prior, (x, q, k))
    assert_close(
        past(found[..., 4:, 4:]), past(bias(prior, (x[:, 4:], q[..., 4:, :], k[..., 4:, :]))), rtol=1e-12, atol=0
    )
    assert torch.equal(found, bias(prior, (x + 1, q + 1, k)))
    slope_of_key = found[..., 9:, 3] / torch.arange(6, 9)
    assert_close(slope_of_key, slope_of_key[..., :1].expand_as(slope_of_key), rtol=1e-12, atol=0)


@pytest.mark.parametrize("cls", PRIORS)
def test_neither_adds_up_along_a_path(cls):
    prior = shaken(make(cls)).double()
    b = bias(prior, window(prior, 9, dtype=torch.float64))
    assert (b[..., 8, 2] - b[..., 8, 5] - b[..., 5, 2]).abs().min() > 1e-6


def test_key_gate_lane_of_two_channels_holds_the_bias():
    prior = shaken(make(GrapeA)).double()
    x, q, k = window(prior, 11, dtype=torch.float64)
    minus_slope = prior.tokens(x, q, k)
    i = torch.arange(11, dtype=torch.float64)
    extra_q = torch.stack((-i, torch.ones_like(i)), -1).expand(2, 4, 11, 2)
    extra_k = torch.stack((-minus_slope, -minus_slope * i), -1)
    assert_close(past(extra_q @ extra_k.mT), past(bias(prior, (x, q, k))), rtol=1e-10, atol=1e-12)


def test_path_integral_is_its_definition():
    prior = shaken(make(GrapeAP))
    inputs = window(prior, 13)
    exact = torch.stack([path_integral(prior, x) for x in inputs[0]])
    assert_close(past(bias(doubled(prior), tuple(t.double() for t in inputs))), exact, rtol=1e-10, atol=1e-12)
    assert_close(past(bias(prior, inputs)).double(), exact, rtol=1e-5, atol=1e-6)


def test_turning_is_one_radian_a_token_clockwise():
    unit = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(4, 2)
    t = torch.arange(4, dtype=torch.float64)
    assert_close(turn_by_position(unit), torch.stack((t.cos(), -t.sin()), -1))


@pytest.mark.parametrize("heads", [4, 6])
def test_path_integral_without_weights_is_alibi(heads):
    prior = make(GrapeAP, heads=heads).double()
    with torch.no_grad():
        prior.weight_GC.zero_()
    slopes = [math.log(2) * m for m in alibi_slopes(heads)]
    found = bias(prior, window(prior, 9, dtype=torch.float64))
    for item in found:
        assert_close(past(item), alibi_bias(slopes, 9), rtol=1e-7, atol=0)


def test_path_integral_with_one_query_for_all_is_a_forget_gate():
    """psi(i, l) = psi(l): then b is FoX's with ln f_l = psi(l)."""
    prior = shaken(make(GrapeAP, heads=1)).double()
    query, back = prior.tokens(*window(prior, 9, dtype=torch.float64))
    i = torch.arange(9)
    found = prior(PriorContext(i, i, (query[..., 3:4, :].expand_as(query).contiguous(), back)))[0, 0].detach()
    ln_f = found.diagonal(-1)  # b[i, i-1] = psi(i)
    logits = [0.0, *(-torch.log(torch.expm1(-ln_f))).tolist()]
    fox = make(ForgetGate, width=1, heads=1).double()
    with torch.no_grad():
        fox.weight_GC.fill_(1.0)
    x = torch.tensor(logits, dtype=torch.float64).reshape(1, -1, 1)
    assert_close(past(found), past(bias(fox, (x, None, None))[0, 0]), rtol=1e-10, atol=1e-12)


def test_path_integral_is_not_shift_invariant():
    prior = shaken(make(GrapeAP)).double()
    inputs = window(prior, 12, dtype=torch.float64)
    late = tuple(t[:, 3:] if n == 0 else t[:, :, 3:] for n, t in enumerate(inputs))
    difference = past(bias(prior, inputs)[..., 3:, 3:]) - past(bias(prior, late))
    assert difference.abs().max() > 1e-2


def test_path_integral_is_causal_and_monotone():
    assert GrapeAP.non_increasing
    prior = shaken(make(GrapeAP)).double()
    x, q, k = window(prior, 11, dtype=torch.float64)
    before = bias(prior, (x, q, k))
    changed = x.clone()
    changed[:, 6:] += 1
    after = bias(prior, (changed, q, k))
    assert torch.equal(before[..., :6, :6], after[..., :6, :6])
    assert (before[..., 6:, :] != after[..., 6:, :]).any()
    assert not before.diagonal(dim1=-2, dim2=-1).any()
    for i in range(11):
        assert (before[..., i, 1 : i + 1] >= before[..., i, :i]).all()


@pytest.mark.parametrize("cls", PRIORS)
def test_blocks_of_rows_and_columns_equal_the_whole(cls):
    prior = shaken(make(cls))
    inputs = window(prior, 23)
    whole = bias(prior, inputs)
    questions = (
        (range(7, 15), range(15)),
        ([22], range(23)),
        (range(23), range(3, 9)),
        (range(10, 13), range(4, 20)),
        (range(5), range(5, 9)),
        ([20, 4, 11], [0, 0, 5]),
    )
    for rows, columns in questions:
        block = bias(prior, inputs, list(rows), list(columns))
        expected = whole[..., list(rows), :][..., list(columns)]
        visible = torch.tensor(list(rows))[:, None] >= torch.tensor(list(columns))
        # The matrix product of a block may add in another order.
        assert_close(block * visible, expected * visible, rtol=1e-5, atol=1e-6)
        assert torch.isfinite(block).all()


@pytest.mark.parametrize("cls", PRIORS)
def test_cached_decoding_equals_the_window(cls):
    prior = shaken(make(cls)).double()
    inputs = window(prior, 10, dtype=torch.float64)
    whole = bias(prior, inputs)
    for length in range(1, 11):
        prefix = tuple(t[:, :length] if n == 0 else t[:, :, :length] for n, t in enumerate(inputs))
        step = bias(prior, prefix, [length - 1])
        assert_close(step, whole[..., length - 1 : length, :length], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("cls", PRIORS)
def test_gradient_is_the_finite_difference_and_reaches_every_parameter(cls):
    prior = shaken(make(cls, width=3, heads=2, head_dim=2)).double()
    x, q, k = window(prior, 4, batch=1, dtype=torch.float64, gradient=True)
    names, parameters = zip(*prior.named_parameters(), strict=True)

    def biases(x, k, *values):
        state = {f"prior.{name}": value for name, value in zip(names, values, strict=True)}
        return past(torch.func.functional_call(_Biases(prior), state, ((x, q, k),)))

    assert torch.autograd.gradcheck(biases, (x, k, *parameters))
    past(bias(prior, (x, q, k))).square().sum().backward()
    assert all(parameter.grad.abs().min() > 0 for parameter in parameters)


class _Biases(torch.nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.prior = prior

    def forward(self, inputs):
        return bias(self.prior, inputs)


def plain_rows(prior, inputs, rows):
    """The definition in float32 throughout, each path added by itself from the query backwards."""
    x, _, k = (tensor[0].detach() for tensor in inputs)
    slopes = torch.tensor(alibi_slopes(prior.geometry.heads)).numpy()
    out = []
    if isinstance(prior, GrapeA):
        u = prior.u_HD.detach() / prior.u_HD.detach().norm(dim=-1, keepdim=True)
        gate = torch.nn.functional.softplus((k * u[:, None]).sum(-1) / prior.geometry.head_dim**0.5).numpy()
        scale = torch.nn.functional.softplus(prior.omega_H.detach()).numpy() * slopes
        for i in rows:
            d = np.arange(i, -1, -1, dtype=np.float32)
            out.append(-d * scale[:, None] * gate[:, : i + 1])
        return out
    p = (x @ prior.weight_GC.detach().T).unflatten(-1, (-1, 8)).transpose(0, 1)
    turned = turn_by_position(p / (p.square().mean(-1, keepdim=True) + 2.0**-23).sqrt())
    for i in rows:
        psi = torch.nn.functional.logsigmoid((turned[:, : i + 1] @ p[:, i, :, None]).squeeze(-1) / 8).numpy()
        psi = psi * slopes[:, None]
        sums = np.zeros_like(psi)
        for j in range(i - 1, -1, -1):
            sums[:, j] = sums[:, j + 1] + psi[:, j + 1]
        out.append(sums)
    return out


@pytest.mark.parametrize("cls", PRIORS)
def test_long_windows_err_at_most_twice_what_the_plain_form_does(cls):
    length, rows = 4096, [100, 2049, 4095]
    prior = shaken(make(cls, heads=2, width=6), scale=0.2)
    inputs = window(prior, length, batch=1)
    exact = bias(doubled(prior), tuple(t.double() for t in inputs), rows)[0].detach().numpy()
    ours = bias(prior, inputs, rows)[0].detach().numpy()
    plain = plain_rows(prior, inputs, rows)
    for near in (16, 256, length):
        ours_error = plain_error = 0.0
        for n, i in enumerate(rows):
            seen = slice(max(i + 1 - near, 0), i + 1)
            plain_error = max(plain_error, np.abs(plain[n][:, seen] - exact[:, n, seen]).max())
            ours_error = max(ours_error, np.abs(ours[:, n, seen] - exact[:, n, seen]).max())
        assert ours_error <= 2 * plain_error


@settings(max_examples=40, deadline=None)
@given(
    cls=st.sampled_from(PRIORS),
    length=st.integers(1, 37),
    heads=st.integers(1, 5),
    magnitude=st.sampled_from([0.0, 1e-6, 1.0, 50.0, 1e4]),
)
def test_extreme_inputs_keep_rows_whole(cls, length, heads, magnitude):
    prior = shaken(make(cls, heads=heads))
    inputs = tuple(tensor * magnitude for tensor in window(prior, length))
    b = bias(prior, inputs)
    assert torch.isfinite(b).all()
    weights = softmax_rows(b)
    assert_close(weights.sum(-1), torch.ones(2, heads, length))
    weights.square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in prior.parameters())


@pytest.mark.parametrize(("cls", "count"), [(GrapeA, 780), (GrapeAP, 73728)])
def test_parameter_counts_at_width_768(cls, count):
    prior = cls(Geometry(768, 12, 64, 1024), torch.Generator().manual_seed(0))
    assert sum(parameter.numel() for parameter in prior.parameters()) == count


@pytest.mark.parametrize("cls", PRIORS)
def test_initial_values_come_from_the_given_stream_alone(cls):
    before = torch.get_rng_state()
    prior, again = (make(cls, width=768, heads=12, head_dim=64, seed=3) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(prior.parameters(), again.parameters(), strict=True))


def test_initial_values_are_those_of_the_source():
    a = make(GrapeA, width=768, heads=12, head_dim=64)
    assert a.omega_H.tolist() == pytest.approx([0.541325] * 12, abs=5e-7)
    assert float(a.u_HD.detach().std()) == pytest.approx(1 / 8, rel=0.08)
    integral = make(GrapeAP, width=768, heads=12, head_dim=64)
    assert float(integral.weight_GC.detach().std()) == pytest.approx(0.5 / math.sqrt(768), rel=0.02)
    for prior in (a, integral):
        per_token = bias(prior, window(prior, 300), [299], range(290)).detach() / torch.arange(299, 9, -1)
        expected = [-math.log(2) * m for m in alibi_slopes(12)]
        # Gates vary from key to key around the mean slope that B.8 and B.9 state.
        assert per_token.mean((0, 2, 3)).tolist() == pytest.approx(expected, rel=0.05)


def test_reported_slope_is_that_of_a_key_orthogonal_to_u():
    prior = shaken(make(GrapeA))
    zeros = (torch.zeros(1, 2, 12), *[torch.zeros(1, 4, 2, 8)] * 2)
    assert prior.parameters_report()["slope"] == pytest.approx((-bias(prior, zeros)[0, :, 1, 0]).tolist())
    assert make(GrapeAP).parameters_report() == {}
    assert prior.summable() is None
    assert make(GrapeAP).summable() is None


@pytest.mark.parametrize(("key", "cls"), [("grape-a", GrapeA), ("grape-ap", GrapeAP)])
def test_arm_rows_have_no_rotation(key, cls):
    arm = ARMS[key]
    assert arm.rotation is None
    assert arm.transport is None
    assert arm.log_prior.load() is cls
    assert arm.position_lr == 1 / 3
