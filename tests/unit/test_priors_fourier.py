"""Goat's log-prior against arms.md B.10: loops, reductions, what is relative and what is not, initial values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_cases import alibi_bias, bias, doubled, make, past, shaken, softmax_rows, window
from torch.testing import assert_close

from causal_priors.arms import ARMS
from causal_priors.priors.base import Geometry, PriorContext
from causal_priors.priors.formulas import alibi_slopes
from causal_priors.priors.fourier import Goat, frequencies


def goat(length, **options):
    """A shaken float64 prior and its whole bias [H, T, T]."""
    prior = shaken(make(Goat, **options)).double()
    return prior, bias(prior, window(prior, length, dtype=torch.float64))[0].detach()


def silence(prior, keep=()):
    """Set every term but `keep` to nothing."""
    with torch.no_grad():
        for name, parameter in prior.named_parameters():
            if name not in keep:
                parameter.fill_(-800.0 if name == "rho_H" else 0.0)
    return prior


def test_frequencies():
    assert frequencies(1) == [1.0]
    assert frequencies(2) == pytest.approx([1.0, 1e-4], rel=1e-14)
    assert frequencies(4) == pytest.approx([1.0, 10 ** (-4 / 3), 10 ** (-8 / 3), 1e-4], rel=1e-14)


@pytest.mark.parametrize("head_dim", [16, 32])
def test_bias_is_its_definition(head_dim):
    prior, found = goat(11, heads=3, head_dim=head_dim, train_length=7)
    count = 4 if head_dim == 32 else 2
    assert prior.alpha_HF.shape == (3, count)
    p = {name: value.detach() for name, value in prior.named_parameters()}
    w = [10_000 ** (-r / (count - 1)) for r in range(count)]
    for i in range(11):
        for j in range(i + 1):
            phi = [math.cos(j * f) for f in w] + [math.sin(j * f) for f in w]
            phi = torch.tensor([*phi, j / 7, math.log1p(j) / math.log1p(7)], dtype=torch.float64)
            hidden = p["hidden_weight_NI"] @ phi + p["hidden_bias_N"]
            sink = p["out_weight_1N"] @ (hidden * hidden.sigmoid()) + p["out_bias_1"]
            for h in range(3):
                d = i - j
                series = sum(
                    p["alpha_HF"][h, r] * math.cos(w[r] * d) + p["beta_HF"][h, r] * math.sin(w[r] * d)
                    for r in range(count)
                )
                slope = math.log1p(math.exp(p["rho_H"][h]))
                expected = series + p["gain_H"][h] * sink + p["bump_H"][h] * (j == 0) - slope * d
                assert float(found[h, i, j]) == pytest.approx(float(expected), rel=1e-11, abs=1e-12)


def test_silent_prior_is_plain_softmax():
    prior = silence(make(Goat))
    assert not past(bias(prior, window(prior, 9))).any()


@pytest.mark.parametrize("heads", [4, 6])
def test_slope_alone_is_alibi(heads):
    prior = silence(make(Goat, heads=heads).double(), keep=("rho_H",))
    found = past(bias(prior, window(prior, 9, dtype=torch.float64))[0])
    assert_close(found, alibi_bias(alibi_slopes(heads), 9), rtol=1e-6, atol=0)


def test_relative_part_is_shift_invariant_bit_for_bit_and_the_key_lane_is_not():
    prior = shaken(make(Goat))
    i, shifted = torch.arange(20), torch.arange(13, 33)
    here, there = PriorContext(i, i), PriorContext(shifted, shifted)
    assert torch.equal(prior.relative(here), prior.relative(there))
    assert (prior.key_lane(i) - prior.key_lane(shifted)).abs().max() > 1e-2
    move = softmax_rows(prior(here)) - softmax_rows(prior(there))
    assert move.abs().max() > 1e-3


def test_bump_is_on_the_first_token_of_the_window_only():
    prior = silence(make(Goat), keep=())
    with torch.no_grad():
        prior.bump_H.fill_(2.5)
    found = bias(prior, window(prior, 6))[0]
    assert (found[..., 0] == 2.5).all()
    assert not past(found)[..., 1:].any()


def test_finite_rank_form_equals_the_series():
    """B.10: query (a cos wi + b sin wi, a sin wi - b cos wi), key (cos wj, sin wj)."""
    prior = silence(shaken(make(Goat, head_dim=32)).double(), keep=("alpha_HF", "beta_HF"))
    found = bias(prior, window(prior, 15, dtype=torch.float64))[0]
    angle = torch.arange(15, dtype=torch.float64)[:, None] * torch.tensor(frequencies(4), dtype=torch.float64)
    c, s, a, b = angle.cos(), angle.sin(), prior.alpha_HF[:, None], prior.beta_HF[:, None]
    query = torch.cat((a * c + b * s, a * s - b * c), -1)
    assert_close(past(query @ torch.cat((c, s), -1).T), past(found), rtol=1e-10, atol=1e-12)


def test_a_constant_on_every_key_changes_no_weight():
    prior, _ = goat(12)
    with torch.no_grad():
        prior.out_bias_1.add_(3.0)
        prior.gain_H.fill_(1.0)
    moved = bias(prior, window(prior, 12, dtype=torch.float64))[0].detach()
    with torch.no_grad():
        prior.out_bias_1.sub_(3.0)
    still = bias(prior, window(prior, 12, dtype=torch.float64))[0].detach()
    assert (moved - still).abs().min() > 2.9
    assert_close(softmax_rows(moved), softmax_rows(still), rtol=1e-12, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(spread=st.floats(0.0, 5.0), seed=st.integers(0, 10**6))
def test_weights_stay_within_the_content_range_of_the_prior(spread, seed):
    _, found = goat(9)
    z = spread * torch.rand(4, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p, pi = softmax_rows(found + z), softmax_rows(found)
    for i in range(9):
        seen = (slice(None), i, slice(i + 1))
        gap = z[seen].amax(-1, keepdim=True) - z[seen].amin(-1, keepdim=True)
        assert (p[seen] >= pi[seen] * (-gap).exp() * (1 - 1e-12)).all()
        assert (p[seen] <= pi[seen] * gap.exp() * (1 + 1e-12)).all()


def test_blocks_of_rows_and_columns_equal_the_whole():
    prior = shaken(make(Goat))
    inputs = window(prior, 23)
    whole = bias(prior, inputs)
    for rows, columns in (
        (range(7, 15), range(15)),
        ([22], range(23)),
        (range(9, 23), range(3, 9)),
        ([20, 9], [0, 0, 5]),
    ):
        block = bias(prior, inputs, rows, columns)
        # The matrix product of a block may add in another order.
        assert_close(block, whole[..., list(rows), :][..., list(columns)], rtol=1e-5, atol=1e-6)


def test_nothing_depends_on_the_tokens():
    prior = shaken(make(Goat))
    assert prior.tokens(*window(prior, 6)) is None
    assert torch.equal(bias(prior, window(prior, 6)), bias(prior, window(prior, 6, seed=9)))


def test_gradient_is_the_finite_difference_and_reaches_every_parameter():
    prior = shaken(make(Goat, heads=2)).double()
    inputs = window(prior, 5, dtype=torch.float64)
    names, parameters = zip(*prior.named_parameters(), strict=True)

    def biases(*values):
        state = dict(zip(names, values, strict=True))
        return past(torch.func.functional_call(prior, state, (PriorContext(torch.arange(5), torch.arange(5)),)))

    assert torch.autograd.gradcheck(biases, parameters)
    past(bias(prior, inputs)).square().sum().backward()
    assert all(parameter.grad.abs().min() > 0 for parameter in parameters)


def test_long_windows_err_at_most_twice_what_the_plain_form_does():
    length, rows = 4096, [100, 2049, 4095]
    prior = shaken(make(Goat, heads=2, head_dim=32, train_length=512), scale=0.3)
    inputs = window(prior, length, batch=1)
    exact = bias(doubled(prior), tuple(t.double() for t in inputs), rows)[0].detach()
    ours = bias(prior, inputs, rows)[0].detach()
    p = {name: value.detach() for name, value in prior.named_parameters()}
    w = torch.tensor(frequencies(4))
    j = torch.arange(length).float()
    phi = torch.cat(
        ((j[:, None] * w).cos(), (j[:, None] * w).sin(), j[:, None] / 512, j[:, None].log1p() / math.log1p(512)), 1
    )
    hidden = torch.nn.functional.silu(phi @ p["hidden_weight_NI"].T + p["hidden_bias_N"])
    lane = p["gain_H"][:, None] * (hidden @ p["out_weight_1N"].T + p["out_bias_1"])[:, 0] + p["bump_H"][:, None] * (
        j == 0
    )
    slope = torch.nn.functional.softplus(p["rho_H"])
    for near in (16, 256, length):
        ours_error = plain_error = 0.0
        for n, i in enumerate(rows):
            seen = slice(max(i + 1 - near, 0), i + 1)
            d = i - j[seen]
            series = (p["alpha_HF"] @ (d * w[:, None]).cos()) + (p["beta_HF"] @ (d * w[:, None]).sin())
            plain = series + lane[:, seen] - slope[:, None] * d
            plain_error = max(plain_error, float((plain - exact[:, n, seen]).abs().max()))
            ours_error = max(ours_error, float((ours[:, n, seen] - exact[:, n, seen]).abs().max()))
        assert ours_error <= 2 * plain_error


def test_slope_is_not_carried_in_half_precision():
    """Trap B.0.4 (3): under bf16 autocast neighbouring keys far from the start still differ by one slope."""
    prior = silence(make(Goat), keep=("rho_H",))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = bias(prior, window(prior, 2), [8000], [7000, 7001])
    assert found.dtype == torch.float32
    assert (found[0, :, 0, 1] - found[0, :, 0, 0]).tolist() == pytest.approx(alibi_slopes(4), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 37),
    heads=st.integers(1, 5),
    head_dim=st.sampled_from([3, 16, 32, 64]),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e3]),
)
def test_extreme_parameters_keep_rows_whole(length, heads, head_dim, scale):
    prior = shaken(make(Goat, heads=heads, head_dim=head_dim), scale=scale)
    b = bias(prior, window(prior, length))
    assert b.shape == (1, heads, length, length)
    assert torch.isfinite(b).all()
    weights = softmax_rows(b)
    assert_close(weights.sum(-1), torch.ones(1, heads, length))


def test_parameter_count_at_width_768():
    prior = Goat(Geometry(768, 12, 64, 1024), torch.Generator().manual_seed(0))
    assert sum(parameter.numel() for parameter in prior.parameters()) == 181


def test_initial_values_are_the_seeded_ones_from_the_given_stream_alone():
    before = torch.get_rng_state()
    prior, again = (make(Goat, heads=12, head_dim=64, seed=3) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(prior.parameters(), again.parameters(), strict=True))
    assert float(prior.alpha_HF.detach().std()) == pytest.approx(0.01, rel=0.3)
    assert float(prior.hidden_weight_NI.detach().std()) == pytest.approx(1e-3, rel=0.3)
    assert 0 < float(prior.out_weight_1N.detach().abs().max()) < 5e-3
    assert not any(value.any() for value in (prior.beta_HF, prior.hidden_bias_N, prior.out_bias_1, prior.bump_H))
    assert (prior.gain_H == 1).all()
    assert prior.parameters_report() == {"slope": pytest.approx(alibi_slopes(12), rel=1e-6), "bump": [0.0] * 12}
    start = past(bias(prior, window(prior, 50))[0].double())
    assert (start - alibi_bias(alibi_slopes(12), 50)).abs().max() < 0.15
    assert prior.summable() is None


def test_arm_row_has_no_rotation():
    arm = ARMS["goat"]
    assert arm.rotation is None
    assert arm.transport is None
    assert arm.log_prior.load() is Goat
