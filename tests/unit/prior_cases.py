"""Small tools for testing log-priors: build one, bind it to a window, read its biases and its softmax rows."""

import copy

import torch

from causal_priors.priors.base import BoundPrior, Geometry


def make(cls, *, width=12, heads=4, head_dim=8, train_length=16, seed=0, **options):
    geometry = Geometry(width, heads, head_dim, train_length)
    return cls(geometry, torch.Generator().manual_seed(seed), **options)


def shaken(prior, seed=1, scale=0.5):
    """The prior with every parameter moved off its initial value, so that no term is 0 by accident."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
    return prior


def window(prior, length, *, batch=2, seed=2, dtype=torch.float32, gradient=False):
    """Random normed inputs, queries and keys of one window."""
    generator = torch.Generator().manual_seed(seed)
    geometry = prior.geometry
    x = torch.randn(batch, length, geometry.width, generator=generator)
    q, k = torch.randn(2, batch, geometry.heads, length, geometry.head_dim, generator=generator)
    return tuple(tensor.to(dtype).requires_grad_(gradient) for tensor in (x, q, k))


def bias(prior, inputs, rows=None, columns=None):
    """Biases of these rows and columns (default: the whole window)."""
    length = inputs[0].shape[1]
    bound = BoundPrior(prior, prior.tokens(*inputs))
    i = torch.arange(length) if rows is None else torch.tensor(list(rows))
    j = torch.arange(length) if columns is None else torch.tensor(list(columns))
    return bound(i, j)


def past(values):
    """The entries at j <= i of [..., T, T]; the others are nobody's business."""
    return values.tril()


def softmax_rows(values):
    future = torch.ones(values.shape[-2:], dtype=torch.bool).triu(1)
    return values.masked_fill(future, -torch.inf).softmax(-1)


def doubled(prior):
    return copy.deepcopy(prior).double()


def alibi_bias(slopes, length):
    """-m_h (i - j) by two loops: [H, T, T]."""
    rows = [[[-m * max(i - j, 0) for j in range(length)] for i in range(length)] for m in slopes]
    return torch.tensor(rows, dtype=torch.float64)
