"""What training takes on a CPU in place of PyTorch's own: attention that keeps its weights, GELU, the rotated heads.

Each against the plain formula in float64: values, and every gradient.
"""

import pytest
import torch
import torch.nn.functional as F
from prior_cases import make, shaken

from causal_priors.attention.kept import ROWS, kept
from causal_priors.attention.rotary import LearnedFrequencies, RoPE, heads
from causal_priors.attention.softmax import whole
from causal_priors.gelu import gelu
from causal_priors.priors.base import BoundPrior, Geometry
from causal_priors.priors.distance import ALiBi, LogDistance
from causal_priors.priors.path import Cable

B, H, D = 2, 4, 8


def normal(*shape, seed=0, dtype=torch.float64):
    """Float32 numbers in any dtype, so that every precision is given the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def outcome(function, inputs, leaves=None):
    """The outputs of a function and the gradients of its inputs, under one random weighting of every output."""
    inputs = [value.detach().clone().requires_grad_() for value in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weights = [normal(*value.shape, seed=9 + n, dtype=value.dtype) for n, value in enumerate(outputs)]
    grads = torch.autograd.grad(outputs, [*inputs, *(leaves or ())], weights)
    return [value.detach().double() for value in (*outputs, *grads)]


def errors(found, truth):
    """Of each output and gradient, as shares of its size (which is 0 for some gradients of a window of one token)."""
    return [
        float((one - other).norm() / other.norm().clamp_min(1e-30)) for one, other in zip(found, truth, strict=True)
    ]


@pytest.mark.parametrize("length", [1, 17, ROWS, ROWS + 3, 3 * ROWS - 1])
@pytest.mark.parametrize("prior", [None, ALiBi, LogDistance, Cable])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_attention_is_that_of_all_logits(length, prior, dtype):
    module = None if prior is None else shaken(make(prior)).double()
    x_BTC = normal(B, length, 12, seed=4)

    def run(attention, dtype):
        if module is None:
            return outcome(lambda q, k, v: attention(q, k, v, None), inputs(dtype))
        prior = module.to(dtype)
        bound = BoundPrior(prior, prior.tokens(x_BTC.to(dtype), *inputs(dtype)[:2]))
        return outcome(lambda q, k, v: attention(q, k, v, bound), inputs(dtype), list(prior.parameters()))

    def inputs(dtype):
        # As strided as the model hands them over.
        return normal(B, length, 3, H, D, dtype=dtype).permute(2, 0, 3, 1, 4).unbind()

    exact, found = run(whole, torch.float64), run(kept, dtype)
    if dtype == torch.float64:
        assert max(errors(found, exact)) < 1e-13
    else:
        # Together: the four numbers of a parameter's gradient alone may be close to the truth by chance.
        assert sum(errors(found, exact)) <= 2 * sum(errors(run(whole, torch.float32), exact))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_and_its_slope_are_those_of_the_tanh_form(dtype):
    # As wide as what comes before it in a trained model, and extremes.
    x = torch.cat((2 * normal(2000), torch.tensor([0.0, -0.0, 1e-30, 30.0, -30.0, 1e4, -1e4], dtype=torch.float64)))
    x = x.to(torch.float32)
    exact = outcome(lambda x: F.gelu(x, approximate="tanh"), [x.double()])
    found = outcome(gelu, [x.to(dtype)])
    plain = outcome(lambda x: F.gelu(x, approximate="tanh"), [x])
    if dtype == torch.float64:
        for ours, truth in zip(found, exact, strict=True):
            torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-14)
    else:
        assert (found[0] - exact[0]).norm() <= 2 * (plain[0] - exact[0]).norm()
        # The slope, at most 1.13, is off by two units in the last place of 1 on average.
        assert (found[1] - exact[1]).square().mean().sqrt() <= 2 * 2**-23


@pytest.mark.parametrize("rotation", [None, RoPE, LearnedFrequencies])
def test_heads_are_the_parts_of_a_linear_layer_with_query_and_key_rotated(rotation):
    module = rotation and rotation(Geometry(H * D, H, D, 16), torch.Generator()).double()
    leaves = list(module.parameters()) if module else []
    linear = normal(B, 20, 3 * H * D)

    def parts(linear):
        return linear.view(B, 20, 3, H, D).permute(2, 0, 3, 1, 4)

    def ours(linear):
        return heads(parts(linear), module and module.tables(parts(linear)))

    def plain(linear):
        q, k, v = parts(linear)
        return (q, k, v) if module is None else (module(q), module(k), v)

    found, exact = outcome(ours, [linear], leaves), outcome(plain, [linear], leaves)
    assert all(part.is_contiguous() for part in ours(linear))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
