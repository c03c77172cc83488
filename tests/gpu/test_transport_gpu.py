"""The transport operator on a GPU: kernels and blocks against float64, at sizes the interpreter cannot reach."""

import pytest
import torch

from causal_priors.attention.transport import DistanceLogPrior, choose, transport_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]


def evaluate(length, width, strength, impl, dtype):
    generator = torch.Generator().manual_seed(length)
    made = [torch.randn(2, 4, length, width, generator=generator, dtype=torch.float64) for _ in range(4)]
    q, k, v, dout = (x.to("cuda", dtype) for x in made)
    inputs = [x.requires_grad_() for x in (q, k, v, torch.linspace(0.2, 1.6, 4, device="cuda", dtype=dtype))]
    prior = DistanceLogPrior("log", inputs[3])
    out = transport_attention(*inputs[:3], log_prior=prior, strength=strength, impl=impl)
    return [x.detach().double() for x in (out, *torch.autograd.grad(out, inputs, dout))]


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.95])
@pytest.mark.parametrize(("length", "width"), [(31, 16), (257, 64), (1000, 128)])
def test_kernels_and_blocks_agree_with_float64(length, width, strength):
    truth = evaluate(length, width, strength, "blocked", torch.float64)
    blocked = evaluate(length, width, strength, "blocked", torch.float32)
    kernels = evaluate(length, width, strength, "triton", torch.float32)
    for exact, plain, mine in zip(truth, blocked, kernels, strict=True):
        # The blocked errors are below the reference's (test_transport_error_budget.py): twice the reference allows four.
        assert (mine - exact).norm() <= 4 * (plain - exact).norm() + 1e-7 * exact.norm()


def test_auto_takes_the_kernels_and_repeats_itself():
    x = torch.randn(2, 4, 300, 64, device="cuda")
    assert choose(x, x, None).name == "triton"
    first, second = (transport_attention(x, x, x, strength=0.5) for _ in range(2))
    assert torch.equal(first, second)
