"""The compiled FlexAttention on a GPU, forward and backward, for every log-prior that has a score function.

The budget is measured: against float64 it may err at most twice what the plain formula in the same precision does.
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from prior_cases import make, shaken

from causal_priors.attention import dispatch, flex
from causal_priors.attention.softmax import blocked, whole
from causal_priors.priors.base import BoundPrior
from causal_priors.priors.distance import ALiBi, Kerple, LogDistance
from causal_priors.priors.edits import Cap, Repair
from causal_priors.priors.fourier import Goat
from causal_priors.priors.grape import GrapeA, GrapeAP
from causal_priors.priors.path import Cable, ForgetGate

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]
B, H, D, C = 2, 4, 64, 32
# No multiple of the kernel's tiles.
LENGTH = 300


def outcome(attention, cls, dtype):
    """Output and the gradients of q, k, v, the layer's input and the parameters, all in float64 on the CPU."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    prior = shaken(make(cls, head_dim=D, width=C, heads=H, train_length=128)).to(DEVICE, wide)
    generator = torch.Generator().manual_seed(0)
    # Numbers that bfloat16 has, so that every precision is given the same.
    made = [torch.randn(B, H, LENGTH, D, generator=generator).bfloat16() for _ in range(4)]
    made.append(torch.randn(B, LENGTH, C, generator=generator).bfloat16())
    q, k, v, weight, x = (value.to(DEVICE, dtype) for value in made)
    leaves = [value.requires_grad_() for value in (q, k, v, x.to(wide).detach())]
    bound = BoundPrior(prior, prior.tokens(leaves[3], q.to(wide), k.to(wide)))
    out = attention(q, k, v, bound)
    found = torch.autograd.grad(out, [*leaves, *prior.parameters()], weight, allow_unused=True)
    return [out.detach().double().cpu(), *(None if grad is None else grad.double().cpu() for grad in found)]


def check(attention, cls, dtype):
    truth, plain, mine = (outcome(a, cls, d) for a, d in ((whole, torch.float64), (whole, dtype), (attention, dtype)))
    for exact, reference, found in zip(truth, plain, mine, strict=True):
        if exact is not None:
            assert (found - exact).norm() <= 2 * (reference - exact).norm() + 1e-6 * exact.norm() + 1e-6


@pytest.mark.parametrize("cls", [LogDistance, Cable, ForgetGate, GrapeA, Goat, Kerple, ALiBi])
def test_the_kernel_errs_no_more_than_twice_the_plain_formula_in_bfloat16(cls):
    check(flex.attention, cls, torch.bfloat16)


@pytest.mark.parametrize("cls", [LogDistance, Cable])
def test_the_kernel_errs_no_more_than_twice_the_plain_formula_in_float32(cls):
    check(flex.attention, cls, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_row_blocks_err_no_more_than_twice_the_plain_formula(dtype):
    check(blocked, GrapeAP, dtype)


@pytest.mark.parametrize("edit", [Cap, Repair])
def test_swapped_biases_take_the_kernel_too(edit):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, H, LENGTH, D, generator=generator).to(DEVICE) for _ in range(3))
    prior = edit(shaken(make(LogDistance, heads=H)), 128).to(DEVICE)
    with torch.inference_mode():
        assert dispatch.choose(q, BoundPrior(prior), None) == "flex"
        found = dispatch.attend(q, k, v, BoundPrior(prior), None)
        exact = whole(q.double(), k.double(), v.double(), BoundPrior(prior.double()))
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
