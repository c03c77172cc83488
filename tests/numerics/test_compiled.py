"""What a GPU compiles, compiled for a CPU: the pieces of a block around attention, and FlexAttention without a gradient."""

import copy
import shutil
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from model_cases import build, moved, tokens
from prior_cases import make, shaken

from causal_priors.attention import flex
from causal_priors.attention.softmax import whole
from causal_priors.priors.base import BoundPrior
from causal_priors.priors.distance import ALiBi, LogDistance
from causal_priors.priors.fourier import Goat
from causal_priors.priors.grape import GrapeA
from causal_priors.priors.path import Cable, ForgetGate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile wants a C++ compiler (g++) for a CPU"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def outcome(model, half):
    ids_BT, targets_BT = tokens()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        losses_BT = model(ids_BT, targets_BT)
    torch.autograd.backward(losses_BT.mean())
    return [losses_BT.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def distance(found, truth):
    """Of the losses, and of all gradients together, as shares of their sizes."""
    parts = [
        (found[0], truth[0]),
        (torch.cat([x.flatten() for x in found[1:]]), torch.cat([x.flatten() for x in truth[1:]])),
    ]
    return [float((one - other).norm() / other.norm()) for one, other in parts]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("arm", ["rope", "nope", "grape-m", "log-logn", "cable", "grape-ap", "ot-75"])
def test_a_compiled_block_is_the_plain_one(arm, half):
    model = moved(build(arm, depth=3))
    truth = outcome(copy.deepcopy(model).double(), False)
    plain = outcome(model, half)
    model.compile_blocks()
    compiled = outcome(model, half)
    # At most twice as far from float64 as the same precision without the compiler.
    for found, allowed in zip(distance(compiled, truth), distance(plain, truth), strict=True):
        assert found <= 2 * allowed
    # One graph a piece serves every layer.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
    outcome(model, half)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3


@pytest.mark.parametrize("cls", [ALiBi, LogDistance, ForgetGate, Cable, GrapeA, Goat])
def test_compiled_flex_attention_is_the_reference_and_compiled_once(cls):
    length, heads, width = 300, 4, 16
    prior = shaken(make(cls, head_dim=width, heads=heads))
    attend = torch.compile(flex.kernel("cpu"), fullgraph=True, dynamic=False)
    generator = torch.Generator().manual_seed(0)
    flex.kernel.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "kernel", lambda device: attend)
        # As in training: another score function of the same form in every layer and step.
        for _ in range(4):
            x = torch.randn(2, length, 12, generator=generator)
            q, k, v = (torch.randn(2, heads, length, width, generator=generator) for _ in range(3))
            with torch.no_grad():
                for parameter in prior.parameters():
                    parameter.add_(0.01)
            # As evaluation does it.
            with torch.inference_mode():
                bound = BoundPrior(prior, prior.tokens(x, q, k))
                torch.testing.assert_close(flex.attention(q, k, v, bound), whole(q, k, v, bound), rtol=2e-5, atol=2e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
