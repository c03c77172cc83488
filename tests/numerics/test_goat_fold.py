"""Log-priors folded into query and key: the same attention as an explicit bias in float64, and how wrong bf16 is."""

import math
import re

import pytest
import torch

from causal_priors.arms import ARMS
from causal_priors.attention.softmax import whole
from causal_priors.goat.fold import faster, folded_attention, lane_error, lanes
from causal_priors.priors.base import BoundPrior, Geometry

HEADS, DIMS = 4, 16


def prior(key, heads=HEADS, seed=0):
    """The prior of an arm; Goat's with parameters as a trained one might have them."""
    generator = torch.Generator().manual_seed(seed)
    part = ARMS[key].log_prior
    module = part.load()(Geometry(heads * DIMS, heads, DIMS, 64), generator, **part.options)
    if key == "goat":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name != "rho_H":
                    parameter.normal_(0.0, 1.0, generator=generator)
    return module.requires_grad_(False)


def inputs(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, HEADS, length, DIMS, dtype=torch.float64, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("length", [1, 2, 65, 512])
@pytest.mark.parametrize("key", ["alibi", "goat"])
def test_in_float64_folding_is_the_explicit_bias(key, length):
    module = prior(key).double()
    q, k, v = inputs(length)
    expected = whole(q, k, v, BoundPrior(module))
    assert (folded_attention(q, k, v, BoundPrior(module)) - expected).abs().max() < 1e-11


@pytest.mark.parametrize("key", ["alibi", "goat"])
def test_the_lanes_are_the_prior_up_to_a_constant_of_the_row(key):
    module = prior(key).double()
    query, keys = lanes(BoundPrior(module), 100, torch.device("cpu"))
    j = torch.arange(100)
    explicit = BoundPrior(module)(j, j)[0]
    offset = (query @ keys.mT - explicit).tril()
    rows = torch.stack([(offset[:, i, : i + 1] - offset[:, i, :1]).abs().max() for i in range(100)])
    assert rows.max() < 1e-11


@pytest.mark.parametrize("key", ["alibi", "goat"])
def test_float32_is_within_the_rounding_of_its_own_sums(key):
    length = 1024
    exact = whole(*inputs(length), BoundPrior(prior(key).double()))
    module = prior(key).float()
    q, k, v = inputs(length, torch.float32)
    found = folded_attention(q, k, v, BoundPrior(module)).double()
    query, keys = (part.double().abs() for part in lanes(BoundPrior(module), length, torch.device("cpu")))
    # A sum of m products is off by at most m u times the sum of their sizes, u = 2^-24; lanes add their own rounding.
    sizes = (q.double().abs() / math.sqrt(DIMS)) @ k.double().abs().mT + query @ keys.mT
    terms = DIMS + query.shape[-1] + 8
    logits = float(terms * 2**-24 * sizes.max())
    # Logits off by e change weights by a factor within exp(+-2 e), hence an output by 2 e times the size of the values.
    assert float((found - exact).abs().max()) < 2 * logits * 2 * float(v.abs().max())


def test_priors_that_are_no_such_sum_do_not_fold():
    for key in ("kerple", "fox", "log"):
        assert not faster(BoundPrior(prior(key)), 1 << 20)
    assert not faster(None, 1 << 20)
    assert [faster(BoundPrior(prior("goat")), length) for length in (1023, 1024)] == [False, True]
    assert [faster(BoundPrior(prior("alibi")), length) for length in (2047, 2048)] == [False, True]
    q, k, v = inputs(8)
    with pytest.raises(ValueError, match="Kerple is no sum of products"):
        folded_attention(q, k, v, BoundPrior(prior("kerple").double()))


def test_a_half_precision_lane_is_off_by_what_arithmetic_says():
    # Slope 1/2 over 8,192 keys: lanes up to 4,095.5, where bf16 keeps multiples of 16.
    j = torch.arange(8192, dtype=torch.float32)
    lane = (0.5 * (j - 8191))[None, :, None]
    assert lane_error(torch.ones_like(lane), lane, torch.bfloat16) == 8.0
    assert lane_error(torch.ones_like(lane), lane, torch.float32) == 0.0


def test_half_precision_warns_with_the_measured_error():
    q, k, v = inputs(4096, torch.bfloat16)
    bound = BoundPrior(prior("alibi"))
    expected = lane_error(*lanes(bound, 4096, torch.device("cpu")), torch.bfloat16)
    with pytest.warns(
        UserWarning, match=r"folded into torch\.bfloat16 is off by up to .* nats at 4096 tokens"
    ) as caught:
        folded_attention(q[:1], k[:1], v[:1], bound)
    (number,) = re.findall(r"up to ([\d.e+-]+) nats", str(caught[0].message))
    assert float(number) == pytest.approx(expected, rel=0.05)
    assert expected >= 1.0
