"""Properties of attention in every arm at awkward shapes and extreme parameters, sought by hypothesis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import build, tokens

from causal_priors.arms import ARMS
from causal_priors.attention.rows import attention_rows


@pytest.mark.parametrize("key", ARMS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 45),
    heads=st.sampled_from([1, 2, 3, 6]),
    half_dim=st.integers(1, 5),
    position=st.sampled_from([0.0, -100.0, 100.0, 10.0, -10.0]),
    content=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_rows_are_distributions_over_the_past_and_gradients_are_numbers(
    key, length, heads, half_dim, position, content
):
    """Exponents, gates and slopes pushed to both ends; attention logits from none to hundreds."""
    model = build(key, width=2 * heads * half_dim, heads=heads, depth=1)
    with torch.no_grad():
        for name, parameter in model.positional_parameters():
            # Frequencies are exp(lambda / 16): beyond these there is no rotation left to speak of.
            parameter.add_(position / 10 if "lambda" in name else position)
        model.layers[0].qkv.weight.mul_(50 * content)
    ids, targets = tokens(length=length)
    block = model.layers[0]
    q, k, _, prior = block.place(*block.content(model.embedding(ids)))
    with torch.no_grad():
        weights = attention_rows(q, k, prior, ARMS[key].transport, range(length))
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert (weights - weights.tril()).abs().max() == 0
    # A sum of T rounded numbers, each at most 1.
    assert (weights.sum(-1) - 1).abs().max() <= 4 * length * torch.finfo(torch.float32).eps
    losses = model(ids, targets)
    losses.mean().backward()
    assert losses.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
