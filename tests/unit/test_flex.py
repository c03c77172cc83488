"""FlexAttention against the reference, without a GPU: PyTorch evaluates the same score functions on a CPU.

It refuses a backward pass there, by a check of the device and not for want of one: with the check lifted its own backward,
which differentiates the score function and what that looks up, runs operation by operation in any precision.
"""

from importlib import import_module

import pytest
import torch
from prior_cases import make, shaken
from torch._inductor.kernel.flex.flex_attention import validate_joint_graph
from torch.nn.attention import flex_attention as pytorch
from torch.nn.attention.flex_attention import create_block_mask

from causal_priors.arms import ARMS
from causal_priors.attention import dispatch, flex
from causal_priors.attention.softmax import positions, whole
from causal_priors.priors.base import BoundPrior, LogPrior, PriorContext, score_of_distance
from causal_priors.priors.distance import ALiBi, Kerple, LogDistance
from causal_priors.priors.edits import Cap, Repair
from causal_priors.priors.fourier import Goat
from causal_priors.priors.grape import GrapeA, GrapeAP
from causal_priors.priors.path import Cable, ForgetGate

B, H, D, C = 2, 4, 8, 12
CLASSES = [ALiBi, LogDistance, Kerple, ForgetGate, Cable, GrapeA, Goat]


def inputs(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    shapes = [(B, length, C)] + 4 * [(B, H, length, D)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def outcome(attention, prior, length):
    """Output, and the gradients of q, k, v, the layer's input and all parameters."""
    x, q, k, v, weight = inputs(length)
    leaves = [value.requires_grad_() for value in (q, k, v, x)]
    bound = BoundPrior(prior, prior.tokens(x, q, k))
    out = attention(q, k, v, bound)
    found = torch.autograd.grad(out, [*leaves, *prior.parameters()], weight, allow_unused=True)
    return [out.detach(), *found]


@pytest.fixture
def backward_on_a_cpu(monkeypatch):
    monkeypatch.setattr(pytorch, "_validate_device", lambda *_: None)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("length", [flex.BLOCK + 3])
@pytest.mark.parametrize("cls", CLASSES)
def test_flex_attention_is_the_reference_with_every_gradient(backward_on_a_cpu, cls, length):
    prior = shaken(make(cls, head_dim=D, width=C, heads=H)).double()
    truth, found = (outcome(attention, prior, length) for attention in (whole, flex.attention))
    for expected, value in zip(truth, found, strict=True):
        if expected is None:
            assert value is None or not value.any()
        else:
            # Goat's last bias adds the same to every key: its gradient is zero but for rounding.
            torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("edit", [Cap, Repair])
@pytest.mark.parametrize("cls", CLASSES)
def test_score_functions_of_edits_are_their_biases(cls, edit):
    # Lengths of two's powers: repair divides an integer by the training length in float32.
    prior, length = edit(shaken(make(cls)).double(), 16), 64
    x, q, k = inputs(length)[:3]
    bound = BoundPrior(prior, prior.tokens(x, q, k))
    torch.testing.assert_close(pairs(bound, length), bound(*2 * (positions(0, length, q.device),)), rtol=0, atol=1e-12)


def pairs(bound, length):
    """Every j <= i of a score function, evaluated plainly; the rest from the biases, which are unused there."""
    at = positions(0, length, torch.device("cpu"))
    b, h, i, j = torch.meshgrid(torch.arange(B), torch.arange(H), at, at, indexing="ij")
    bias = bound(at, at)
    return torch.where(i >= j, bound.score(at)(b, h, i, j), bias)[: len(bias)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cls", CLASSES)
def test_score_functions_are_the_biases(cls, dtype):
    length = 200
    prior = shaken(make(cls)).to(dtype)
    x, q, k = inputs(length, dtype)[:3]
    bound = BoundPrior(prior, prior.tokens(x, q, k))
    at = positions(0, length, q.device)
    # Bit for bit, but for Goat, whose waves are products of those of two positions, and GRAPE-A at large slopes.
    exact = cls not in (Goat,)
    torch.testing.assert_close(
        pairs(bound, length),
        bound(at, at).detach(),
        rtol=0,
        atol=0 if exact else 2e-5 if dtype == torch.float32 else 1e-12,
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("cls", CLASSES)
def test_what_takes_a_gradient_is_looked_up_once(backward_on_a_cpu, monkeypatch, cls):
    # The compiled backward refuses a second look-up; its own check is run on the graph that it would compile.
    operator = import_module("torch._higher_order_ops.flex_attention")
    graphs = []
    real = operator.create_fw_bw_graph

    def recorded(*arguments):
        made = real(*arguments)
        graphs.append(made[1])
        return made

    monkeypatch.setattr(operator, "create_fw_bw_graph", recorded)
    # No graph of an earlier test.
    torch._dynamo.reset()
    outcome(flex.attention, shaken(make(cls)).double(), 40)
    assert graphs
    for graph in graphs:
        validate_joint_graph(graph.graph)
        looked_up = [node for node in graph.graph.nodes if "zeros_and_scatter" in str(node.target)]
        assert bool(looked_up) == (cls is not ALiBi)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 500])
def test_the_map_of_tiles_is_that_of_the_mask(length):
    ours = flex.causal_blocks(length, torch.device("cpu"))
    theirs = create_block_mask(ours.mask_mod, None, None, length, length, device="cpu", BLOCK_SIZE=flex.BLOCK)
    assert ours.shape == theirs.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, expected = (getattr(mask, f"{name}_num_blocks")[0, 0] for mask in (ours, theirs))
        lists, expected_lists = (getattr(mask, f"{name}_indices")[0, 0] for mask in (ours, theirs))
        assert counts.tolist() == expected.tolist()
        for count, row, expected_row in zip(counts, lists, expected_lists, strict=True):
            assert sorted(row[:count].tolist()) == sorted(expected_row[:count].tolist())


@pytest.mark.parametrize("key", ARMS)
def test_a_gpu_takes_the_fused_kernel_for_every_arm_that_has_a_score_function(monkeypatch, key):
    arm = ARMS[key]
    monkeypatch.setattr(dispatch, "KEPT_NUMBERS", {"cpu": 0})
    monkeypatch.setattr(flex, "GPU", "cpu")
    options = {"margin": 0.5} if "margin" in key else {}
    prior = None
    if arm.log_prior is not None:
        given = {name: value for name, value in arm.log_prior.options.items() if name != "tolerance"}
        module = make(arm.log_prior.load(), head_dim=16, width=16, **given, **options)
        x, q = torch.empty(1, 32, 16), torch.empty(1, 4, 32, 16)
        prior = BoundPrior(module, module.tokens(x, q, q))
    expected = "flex" if prior else "fused"
    if arm.transport is not None:
        expected = "transport"
    elif key == "grape-ap":
        expected = "blocked"
    assert dispatch.choose(torch.empty(1, 4, 32, 16), prior, arm.transport) == expected
    if expected == "flex":
        assert dispatch.choose(torch.empty(1, 4, 32, 16, dtype=torch.float64), prior, None) == "blocked"
        assert dispatch.choose(torch.empty(1, 4, 32, 8), prior, None) == "blocked"


class Root(LogPrior):
    """An arm of one's own: -sqrt(d)."""

    def forward(self, context):
        return -context.distance_RS().sqrt()[None, None].expand(1, self.geometry.heads, -1, -1)


class LookedUpRoot(Root):
    def score(self, context):
        return score_of_distance(self, context)


def test_an_arm_of_ones_own_has_no_score_function_unless_it_gives_one():
    at = torch.arange(30)
    plain, given = BoundPrior(make(Root)), BoundPrior(make(LookedUpRoot))
    assert plain.score(at) is None
    assert Cap(make(Root), 16).score(PriorContext(at, at)) is None
    assert make(GrapeAP).score(PriorContext(at, at)) is None
    assert given.score(at)(0, 1, torch.tensor(25), torch.tensor(9)) == -4.0
