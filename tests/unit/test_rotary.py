"""Rotations against the golden numbers of the arms' definitions (B.1, B.7, B.11) and against float64."""

import math

import pytest
import torch

from causal_priors.attention.rotary import (
    LearnedFrequencies,
    RoPE,
    rope_frequencies,
    turn,
    yarn_frequencies,
    yarn_temperature,
)
from causal_priors.errors import UserError
from causal_priors.priors.base import Geometry


def rotation(cls=RoPE, head_dim=8, train_length=16, **options):
    return cls(Geometry(4 * head_dim, 4, head_dim, train_length), torch.Generator(), **options)


def at(rope, vector, position):
    """The vector rotated as the token at `position`."""
    window = torch.zeros(position + 1, len(vector))
    window[position] = torch.tensor(vector)
    return rope(window[None, None])[0, 0, position]


@pytest.mark.parametrize(("i", "j", "expected"), [(2, 0, 0.889299), (5, 3, 0.889299), (5, 5, 0.0)])
def test_golden_logit_turns_by_plus_angle_with_half_split_pairs(i, j, expected):
    rope = rotation(head_dim=4)
    logit = at(rope, (1.0, 0.0, 0.0, 1.0), i) @ at(rope, (0.0, 1.0, 1.0, 0.0), j)
    assert logit.item() == pytest.approx(expected, abs=5e-7)


def test_rotation_keeps_norms_and_depends_on_the_lag_alone():
    rope = rotation(head_dim=16).double()
    x = torch.randn(2, 3, 40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = rope(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-12)
    same = x[:, :, :1].expand(-1, -1, 40, -1)
    logits = rope(same) @ rope(same).transpose(-1, -2)
    torch.testing.assert_close(logits[..., 5:, 5:], logits[..., :-5, :-5], rtol=0, atol=1e-11)
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0], rtol=0, atol=0)


def test_zero_frequencies_leave_x_alone():
    rope = rotation()
    rope.frequencies = (0.0,) * 4
    x = torch.randn(1, 2, 9, 8)
    assert torch.equal(rope(x), x)


def test_tables_are_right_at_16k_tokens():
    """Float32 angles would be off by a thousandth there; the complex exponential in float64 is the oracle."""
    rope = rotation(head_dim=4)
    window = torch.zeros(1, 1, 16_384, 4)
    window[..., :2] = 1.0
    turned = rope(window)[0, 0, -1]
    for m, theta in enumerate((1.0, 0.01)):
        expected = complex(math.cos(16_383 * theta), math.sin(16_383 * theta))
        assert turned[m].item() == pytest.approx(expected.real, abs=1e-6)
        assert turned[m + 2].item() == pytest.approx(expected.imag, abs=1e-6)


def test_gradients_reach_x_and_tables():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 1, 3, 5, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    cos, sin = (torch.randn(5, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(turn, (x, cos, sin))


def test_half_precision_stays_half_but_turns_in_float32():
    rope, x = rotation(), torch.randn(1, 2, 300, 8)
    turned = rope(x.bfloat16())
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rope(x.bfloat16().float()).bfloat16())


def test_learned_frequencies_start_at_the_golden_values():
    learned = rotation(LearnedFrequencies, head_dim=8)
    golden = [0.0, -36.8414, -73.6827, -110.5241]
    assert learned.lambda_M.tolist() == pytest.approx(golden, abs=5e-5)
    assert torch.exp(learned.lambda_M / 16).tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-6)


def test_learned_frequencies_start_as_rope():
    x = torch.randn(2, 4, 64, 8, generator=torch.Generator().manual_seed(2))
    # lambda is a float32 number of size 110: theta is off by half its last place over 16, times 63 tokens.
    bound = 63 * 0.1 * 2.0**-18 / 16 * x.norm(dim=-1).max().item() + 1e-6
    torch.testing.assert_close(rotation(LearnedFrequencies)(x), rotation()(x), rtol=0, atol=bound)


def test_learned_frequencies_have_the_gradient_of_finite_differences():
    learned = rotation(LearnedFrequencies, head_dim=4).double()
    x = torch.randn(1, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def forward(lambdas):
        return torch.func.functional_call(learned, {"lambda_M": lambdas}, (x,))

    assert torch.autograd.gradcheck(forward, (learned.lambda_M.detach().clone().requires_grad_(),))


PLANES = (5, 6, 8, 10, 12, 14, 16, 17, 18)
GOLDEN = {
    "code": (1, 0.9423, 0.8269, 0.7115, 0.5962, 0.4808, 0.3654, 0.3077, 0.25),
    "paper": (1, 0.9270, 0.6201, 0.4475, 0.3505, 0.2959, 0.2652, 0.2554, 0.25),
}


@pytest.mark.parametrize("ramp", GOLDEN)
def test_yarn_golden_ramps(ramp):
    plain = rope_frequencies(64, 1e4)
    stretched = yarn_frequencies(plain, 1e4, 1024, 4.0, ramp)
    assert [stretched[m] / plain[m] for m in PLANES] == pytest.approx(GOLDEN[ramp], abs=6e-5)
    assert all(theta / 4 - 1e-15 <= new <= theta for new, theta in zip(stretched, plain, strict=True))
    assert list(stretched) == sorted(stretched, reverse=True)


@pytest.mark.parametrize(
    ("head_dim", "length", "low", "high"), [(64, 512, 3, 16), (32, 512, 1, 8), (128, 1024, 11, 36)]
)
def test_yarn_code_ramp_runs_between_the_golden_planes(head_dim, length, low, high):
    plain = rope_frequencies(head_dim, 1e4)
    kept = [new / old for new, old in zip(yarn_frequencies(plain, 1e4, length, 2.0, "code"), plain, strict=True)]
    assert max(m for m, ratio in enumerate(kept) if ratio == pytest.approx(1)) == low
    assert min(m for m, ratio in enumerate(kept) if ratio == pytest.approx(0.5)) == high


@pytest.mark.parametrize(("stretch", "golden"), [(2, 1.069315), (4, 1.138629), (8, 1.207944), (16, 1.277259)])
def test_yarn_golden_temperature(stretch, golden):
    assert yarn_temperature(stretch) == pytest.approx(golden, abs=5e-7)


def test_yarn_multiplies_logits_by_the_square_of_its_temperature():
    rope, x = rotation(train_length=16), torch.randn(1, 1, 64, 8)
    rope.stretch(64)
    norms = rope(x).norm(dim=-1) / x.norm(dim=-1)
    assert norms.flatten().tolist() == pytest.approx([1.138629] * 64, abs=2e-6)


@pytest.mark.parametrize("length", [None, 16, 8])
def test_yarn_within_the_training_length_is_rope_bit_for_bit(length):
    x = torch.randn(1, 2, 16, 8)
    stretched = rotation(train_length=16)
    stretched.stretch(64)
    stretched.stretch(length)
    assert torch.equal(stretched(x), rotation(train_length=16)(x))


def test_yarn_refuses_an_unknown_ramp():
    with pytest.raises(UserError, match=r"ramp = 'linear'.*paper or code"):
        rotation().stretch(64, ramp="linear")
