"""The forward pass of experiment 0006 against the model's own, and what it reads off attention against definitions."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import scale

from causal_priors.arms import ARMS
from causal_priors.attention.rows import attention_rows
from causal_priors.goat.look import Rows, bound_slack, folded, log_probabilities, look, margin
from causal_priors.model import Transformer

ARMS_LOOKED_AT = ["nope", "rope-logn", "kerple", "alibi", "fox", "grape-ap", "goat", "ot-75", "alibi-ot"]
VOCABULARY = 40


def model_of(key):
    size = replace(scale("nano").sizes["S"], width=32, depth=2, heads=2)
    model = Transformer(size, VOCABULARY, ARMS[key], 16, 3).eval().requires_grad_(False)
    # Away from the start, so that layers, heads and tokens differ.
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def ids_of(length, windows=2):
    return torch.randint(VOCABULARY, (windows, length + 1), generator=torch.Generator().manual_seed(length))


CASES = [*((key, 24, False) for key in ARMS_LOOKED_AT), ("goat", 1024, False), ("alibi", 2048, False)]


@pytest.mark.parametrize(("key", "length", "wide"), [*CASES, ("ot-75", 24, True), ("alibi-ot", 24, True)])
def test_it_is_the_models_own_forward_pass(key, length, wide):
    model, ids = model_of(key), ids_of(length)
    final, layers = look(model, ids[:, :-1], 4, wide)
    with torch.inference_mode():
        losses, far = model(ids[:, :-1], ids[:, 1:], far=[(length, 4)])
    found = -log_probabilities(model, final).gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(found.float(), losses, atol=2e-4)
    masses = torch.stack([rows.far_mass(4) for rows in layers])
    assert torch.allclose(masses.float(), far[length, 4], atol=1e-5)
    assert folded(model, length) == (length > 24)


@pytest.mark.parametrize("key", ["nope", "goat", "fox", "ot-75"])
def test_weights_and_the_priors_share_are_those_of_attention(key):
    model, ids = model_of(key), ids_of(20)
    _, layers = look(model, ids[:, :-1], 3)
    with torch.inference_mode():
        block = model.layers[0]
        q, k, _, prior = block.place(*block.content(model.embedding(ids[:, :-1])))
        expected = attention_rows(q, k, prior, block.arm.transport, range(17, 20))
        assert torch.allclose(layers[0].log_weights.exp().float(), expected, atol=1e-6)
        if key == "ot-75":
            assert layers[0].prior is None
            return
        alone = attention_rows(torch.zeros_like(q), k, prior, None, range(17, 20))
    assert torch.allclose(layers[0].prior.exp().float(), alone.expand_as(expected), atol=1e-6)
    assert all((bound_slack(rows) >= -1e-9).all() for rows in layers)


def test_the_margin_of_equal_others_is_how_far_the_first_stands_above_them():
    for delta in (-2.0, 0.0, 7.5):
        logits = torch.zeros(1, 1, 2, 9, dtype=torch.float64)
        logits[..., 0] = delta
        logits[..., 0, 8] = -math.inf
        assert torch.allclose(margin(torch.log_softmax(logits, -1)), torch.tensor(delta, dtype=torch.float64))


def test_the_bound_is_reached_by_the_worst_content():
    # Key 0 has the lowest content of its row and holds almost nothing: p is pi e^-D but for its own share.
    content = torch.full((1, 1, 1, 1000), 2.0, dtype=torch.float64)
    content[..., 0] = 0.0
    rows = Rows(torch.log_softmax(content, -1), torch.log_softmax(content * 0, -1), torch.full((1, 1, 1), 2.0).double())
    assert 0 <= float(bound_slack(rows)) < 2e-3
