"""The implicit gradient of the transport operator against finite differences and against autograd through the reference."""

import pytest
import torch
from torch import nn

from causal_priors.attention.transport import DistanceLogPrior, transport_attention
from causal_priors.attention.transport import blocked as blocked_module
from causal_priors.priors.base import BoundPrior, Geometry, LogPrior


def inputs(batch, heads, length, width, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(batch, heads, length, width, dtype=dtype, generator=generator) for _ in range(3)]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize(
    ("impl", "strength"), [("reference", 0.7), ("blocked", 0.0), ("blocked", 0.5), ("blocked", 0.95)]
)
def test_gradcheck(impl, strength, monkeypatch):
    # Blocks of three rows: the carry between blocks and the pull back across them take part.
    monkeypatch.setattr(blocked_module, "ROWS_FORWARD", 3)
    monkeypatch.setattr(blocked_module, "ROWS_BACKWARD", 3)
    q, k, v = inputs(1, 2, 7, 2)
    bias = torch.randn(2, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).requires_grad_()

    def run(q, k, v, bias):
        return transport_attention(q, k, v, log_prior=bias, strength=strength, impl=impl)

    assert torch.autograd.gradcheck(run, (q, k, v, bias), atol=1e-8)


@pytest.mark.parametrize("kind", ["log", "linear"])
def test_gradcheck_of_the_distance_coefficient(kind):
    q, k, v = inputs(1, 2, 9, 3)
    coefficient = torch.tensor([0.4, 1.3], dtype=torch.float64, requires_grad=True)

    def run(coefficient):
        return transport_attention(q, k, v, log_prior=DistanceLogPrior(kind, coefficient), strength=0.7)

    assert torch.autograd.gradcheck(run, (coefficient,), atol=1e-8)


def gradients(out, wanted):
    generator = torch.Generator().manual_seed(9)
    return torch.autograd.grad((out * torch.randn(out.shape, dtype=out.dtype, generator=generator)).sum(), wanted)


@pytest.mark.parametrize("shape", [(), (1,), (90,), (90, 1), (2, 1, 90), (3, 1, 1, 1), (2, 90, 90), (3, 2, 90, 90)])
def test_gradient_of_every_broadcast_log_prior(shape):
    q, k, v = inputs(3, 2, 90, 4)
    bias = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).requires_grad_()
    found, expected = (
        gradients(transport_attention(q, k, v, log_prior=bias, strength=0.6, impl=impl), (q, k, v, bias))
        for impl in ("blocked", "reference")
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, atol=1e-10)


class Gate(LogPrior):
    """b[i,j] = -slope[h] * sum of gates between j and i: a parameter of its own, one behind the gates, per-token state."""

    def __init__(self, geometry, generator):
        super().__init__(geometry, generator)
        self.weight = nn.Parameter(
            torch.randn(geometry.width, geometry.heads, dtype=torch.float64, generator=generator)
        )
        self.slope = nn.Parameter(torch.ones(geometry.heads, dtype=torch.float64))

    def tokens(self, x, q, k):
        return torch.sigmoid(x @ self.weight).transpose(1, 2).cumsum(-1)

    def forward(self, context):
        run = context.tokens
        return -self.slope[:, None, None] * (run[:, :, context.i_R, None] - run[:, :, None, context.j_S])


def test_a_block_prior_with_token_state_is_counted_once():
    geometry = Geometry(width=6, heads=2, head_dim=4, train_length=75)
    q, k, v = inputs(3, 2, 75, 4)
    x = torch.randn(3, 75, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(8)).requires_grad_()
    prior = Gate(geometry, torch.Generator().manual_seed(1))
    wanted = (q, k, v, x, prior.weight, prior.slope)
    results = []
    for impl in ("blocked", "reference"):
        bound = BoundPrior(prior, prior.tokens(x, q, k))
        results.append(gradients(transport_attention(q, k, v, log_prior=bound, strength=0.6, impl=impl), wanted))
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-10)


def test_a_prior_with_history_and_no_way_to_cut_it_is_refused():
    q, k, v = inputs(1, 2, 5, 4)
    gates = torch.ones(2, dtype=torch.float64, requires_grad=True) * 2

    class Prior:
        def __call__(self, i, j):
            return gates[None, :, None, None] * torch.zeros(1, 1, len(i), len(j))

        def tensors(self):
            return (gates,)

    with pytest.raises(TypeError, match="isolated"):
        transport_attention(q, k, v, log_prior=Prior(), strength=0.5)


def test_backward_twice_gives_the_same():
    q, k, v = inputs(1, 2, 70, 4)
    coefficient = torch.ones(2, dtype=torch.float64, requires_grad=True)
    out = transport_attention(q, k, v, log_prior=DistanceLogPrior("log", coefficient), strength=0.6)
    first, second = (torch.autograd.grad(out.square().sum(), (q, coefficient), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("strength", [0.5, 0.9])
def test_recomputed_carries_give_the_same_gradient(strength, monkeypatch):
    # Few carries kept: three levels of recomputation at 200 rows.
    q, k, v = inputs(1, 2, 200, 4)
    results = []
    for kept, rows in ((16, 32), (2, 8)):
        monkeypatch.setattr(blocked_module, "KEPT", kept)
        monkeypatch.setattr(blocked_module, "ROWS_FORWARD", rows)
        monkeypatch.setattr(blocked_module, "ROWS_BACKWARD", rows)
        results.append(gradients(transport_attention(q, k, v, strength=strength), (q, k, v)))
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-10)


def test_saved_memory_has_no_square_of_the_length():
    sizes = []
    for length in (512, 1024):
        q, k, v = inputs(1, 1, length, 8, dtype=torch.float32)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x.numel()) or x, lambda x: x):
            transport_attention(q, k, v, strength=0.5)
        sizes.append(sum(saved))
    assert sizes[1] <= 2.1 * sizes[0]
    assert sizes[1] < 1024 * 1024 / 8
